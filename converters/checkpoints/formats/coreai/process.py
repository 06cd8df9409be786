"""The process in which Core AI opens one asset."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ....common.apart.process import Library, Process

CODE: Final = f"from {__package__}.inside import main; main()"
DOING: Final[Mapping[str, str]] = {  # requests of ``inside.Inside``, in words
    "constants": "reading the constants of",
    "read": "reading the constants of",
    "ports": "loading",
    "states": "loading",
    "operators": "reading",
    "narrow": "reading",
    "run": "running",
    "computed": "looking inside",
    "watched": "looking inside",
}


def asset_process(path: Path) -> Process:
    """Return what asks Core AI about the asset at PATH."""
    return Process(path, Library("Core AI", "coreai", CODE, DOING))
