"""GGUF files: the tensors of a checkpoint in the place of those of a file that exists already."""

from __future__ import annotations

from .file import GgufFile
from .plan import Plan, plan_export
from .readback import Readback, read_back
from .types import TYPES
from .write import write

__all__ = ["TYPES", "GgufFile", "Plan", "Readback", "plan_export", "read_back", "write"]
