"""Plan, stage, check, publish: the one way in which every verb that writes does its work."""

from __future__ import annotations

import importlib
from typing import Any

# Module -> what it has for others, imported at its first use: no verb pays for another.
_PUBLIC = {
    ".adapters": "AdapterRequest convert_adapter",
    ".converting": "convert",
    ".export": "export_coreml",
    ".merging.merge": "merge",
    ".options": "CheckOptions Options PublishOptions WriteOptions",
    ".parity": "check record",
    ".pipeline": "Outcome",
    ".training": "preflight train",
}
_MODULES = {name: module for module, names in _PUBLIC.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Import what has NAME at its first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name], __name__), name)
