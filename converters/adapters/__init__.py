"""Adapters: low-rank updates read, written, fitted to a base and merged into it."""

from __future__ import annotations

from .adapter import Adapter
from .fit import fit
from .merge import Survival, merge
from .mlx import write_adapter
from .open import read_adapter

__all__ = ["Adapter", "Survival", "fit", "merge", "read_adapter", "write_adapter"]
