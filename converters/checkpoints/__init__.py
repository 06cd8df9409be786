"""Tensor files: opened by their headers, read in pieces, written once and resumed when interrupted."""

from __future__ import annotations

from ..results.locks import locked
from ..results.sources import Sources
from ..results.staging import Staging, sweep
from ..results.targets import require_space, require_target
from .base import CHUNK, Checkpoint, Header
from .formats.safetensors import save_tensors
from .open import open_checkpoint
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
