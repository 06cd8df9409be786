"""Adapters: low-rank updates read, written, fitted to a base and merged into it."""

from __future__ import annotations

from .adapter import Adapter
from .fit import fit
from .merge import merge
from .mlx_writer import write_adapter
from .open import read_adapter
from .peft_writer import write_peft
from .survival import Survival

__all__ = ["Adapter", "Survival", "fit", "merge", "read_adapter", "write_adapter", "write_peft"]
