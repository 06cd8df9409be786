"""Train a captured PyTorch module in MLX, or the same recipe in PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from .config import TrainConfig
    from .preflight import Preflight
    from .runs.loop import TrainResult

__all__ = ["preflight", "train"]


def train(config: TrainConfig, out: Path, **options: Any) -> TrainResult:
    """Train as CONFIG says and write the run to OUT; see :func:`.loop.train`."""
    from .runs.loop import train as run

    return run(config, out, **options)


def preflight(config: TrainConfig) -> Preflight:
    """Check every gradient of the first batch; see :func:`.loop.preflight`."""
    from .runs.loop import preflight as check

    return check(config)
