"""Adapters: low-rank updates read, written, fitted to a base and merged into it."""

from __future__ import annotations

from .adapter import Adapter
from .fit import fit
from .merging.survival import Survival
from .merging.weight import merge
from .mlx.writer import write_adapter
from .open import read_adapter
from .peft.writer import write_peft

__all__ = ["Adapter", "Survival", "fit", "merge", "read_adapter", "write_adapter", "write_peft"]
