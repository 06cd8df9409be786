"""Tensor files: opened by their headers, read in pieces, written once and resumed when interrupted."""

from __future__ import annotations

from .base import CHUNK, Checkpoint, Header
from .locks import locked
from .open import open_checkpoint
from .safetensors import save_tensors
from .sources import Sources
from .staging import Staging, sweep
from .targets import require_space, require_target
from .writer import Writer

__all__ = [
    "CHUNK",
    "Checkpoint",
    "Header",
    "Sources",
    "Staging",
    "Writer",
    "locked",
    "open_checkpoint",
    "require_space",
    "require_target",
    "save_tensors",
    "sweep",
]
