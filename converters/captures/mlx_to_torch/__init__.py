"""MLX modules in PyTorch: ``mx.export_function`` traces them, an interpreter runs the primitives in torch.

The result is a ``torch.nn.Module`` whose parameters have MLX's names and layouts. What MLX decides while
it is traced stays decided: training or evaluation, Python branches, sizes not declared dynamic.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .captured import CapturedMlx
    from .capturing import capture_mlx, census_mlx

_PUBLIC = {"CapturedMlx": ".captured", "capture_mlx": ".capturing", "census_mlx": ".capturing"}
__all__ = ["CapturedMlx", "capture_mlx", "census_mlx"]


def __getattr__(name: str) -> Any:
    """Import a public name, and with it torch and MLX, at its first use."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name], __name__), name)
