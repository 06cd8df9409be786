"""ML programs (Core ML's own format) evaluated on any operating system."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .program import Program

__all__ = ["load_program"]


def load_program(path: Path, function: str | None = None) -> Program:
    """Open the ``.mlpackage`` at PATH; see ``program.load_program``."""
    from .program import load_program as load

    return load(path, function)
