"""What a verdict looks like: for a person, and for a program."""

from __future__ import annotations

from .json import dumps
from .terminal import render

__all__ = ["dumps", "render"]
