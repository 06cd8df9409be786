"""PyTorch modules in MLX: ``torch.export`` records them, an interpreter runs the ATen graph.

The result is an ``mlx.nn.Module`` whose parameters have torch's names and layouts. What torch decides
while recording stays decided: train or eval mode, Python branches, sizes not declared dynamic.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .captured import Captured
    from .capturing import capture_torch, census_torch
    from .generating import Generator

_PUBLIC = {
    "Captured": ".captured",
    "Generator": ".generating",
    "capture_torch": ".capturing",
    "census_torch": ".capturing",
}
__all__ = ["Captured", "Generator", "capture_torch", "census_torch"]


def __getattr__(name: str) -> Any:
    """Import a public name, and with it torch and MLX, at its first use."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name], __name__), name)
