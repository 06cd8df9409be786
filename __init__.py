"""Move models between PyTorch, MLX and Core ML, and prove that nothing was lost on the way."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Public name -> module that holds it: importing weighbridge imports no framework.
_PUBLIC = {
    "WeighbridgeError": ".errors",
    "WeightMap": ".converters.maps",
    "assert_parity": ".parity.check.live",
    "capture": ".converters.captures",
    "open": ".jobs.opening",
}
__all__ = ["WeighbridgeError", "WeightMap", "assert_parity", "capture", "open"]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name], __name__), name)
