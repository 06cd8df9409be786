"""Why a task has a loss or a gradient that is not finite: PyTorch's operations looked at, then MLX's sites."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..data.batches import Batch
from ..steps.base import Step
from ..tasks import Task


def explained(task: Task, step: Step, batch: Batch) -> str:
    """Return in one line why the loss of TASK or a gradient of it is not finite on BATCH.

    Args:
        task: what is trained.
        step: the backend in which it is not finite.
        batch: the inputs.
    """
    from ..steps.torch_adapters import modules_of
    from .nonfinite import explain

    why = explain(modules_of(task)[0], batch.inputs)
    return why or _other_backend(step, batch)


def _other_backend(step: Step, batch: Batch) -> str:
    captured = getattr(step, "model", None)
    site = _first_site(captured, batch) if hasattr(captured, "trace") else None
    where = f", first in {site}" if site else ""
    return (
        f"PyTorch has finite values for the same batch{where}: train with --backend torch, and report"
        " it as a bug"
    )


def _first_site(captured: Any, batch: Batch) -> str | None:
    """Return the first site of CAPTURED whose output is not finite on BATCH."""
    import mlx.core as mx

    fed = {name: mx.array(array) for name, array in batch.inputs.items()}
    _, seen = captured.trace(fed)
    arrays = ((site, np.array(value.astype(mx.float32))) for site, value in seen.items())
    return next((site for site, array in arrays if not np.isfinite(array).all()), None)
