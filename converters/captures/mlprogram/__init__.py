"""ML programs (Core ML's own format) evaluated on any operating system."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...models.signature import Signature
    from .program import Program

__all__ = ["load_program", "read_signature"]


def load_program(path: Path, function: str | None = None) -> Program:
    """Open the ``.mlpackage`` at PATH; see ``program.load_program``."""
    from .program import load_program as load

    return load(path, function)


def read_signature(path: Path, function: str | None = None) -> Signature:
    """Return the signature of the ``.mlpackage`` at PATH; see ``signatures.read_signature``."""
    from .signatures import read_signature as read

    return read(path, function)
