"""GGUF files: the tensors of a checkpoint in the place of those of a file that exists already."""

from __future__ import annotations

from .file import GgufFile
from .plan import Plan, has_names_of, plan_export
from .readback import Readback, read_back
from .types import TYPES
from .write import write

__all__ = [
    "TYPES",
    "GgufFile",
    "Plan",
    "Readback",
    "has_names_of",
    "plan_export",
    "read_back",
    "write",
]
