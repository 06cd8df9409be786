"""Gradients of MLX that are to be compared: computed on the CPU, and how far the training device is from them."""

from __future__ import annotations

from typing import Final

import numpy as np

from ...converters.runtimes.blas import mlx_on
from ...converters.values import Array
from ..data.batches import Batch
from ..steps.base import Arrays, Step

COARSER: Final = 2**13  # TF32 keeps 10 bits behind the first, float32 23


class Exact:
    """A step of MLX whose gradients are computed on the CPU, whatever it trains on.

    GPUs multiply float32 matrices in TF32, whose errors are larger than what a comparison accepts: correct
    runs would be refused, or faults overlooked if it accepted as much.

    Args:
        step: in float32.
        tolerance: largest difference of its own device that nothing is said of, as a fraction of the
            largest gradient, and of the loss where that is above 1. What is beyond as much as TF32 is
            coarser than float32 is a problem.
    """

    def __init__(self, step: Step, tolerance: float) -> None:
        self._step, self._tolerance = step, tolerance
        self.notes: tuple[str, ...] = ()
        self.problems: tuple[str, ...] = ()

    def trainable(self) -> dict[str, Array]:
        """Return a copy of every trainable parameter."""
        return self._step.trainable()

    def assign(self, values: Arrays) -> None:
        """Set trainable parameters."""
        self._step.assign(values)

    def gradients(self, batch: Batch) -> tuple[float, dict[str, Array]]:
        """Return the loss of BATCH and the gradient of every trainable parameter, computed on the CPU."""
        with mlx_on("cpu"):
            loss, exact = self._step.gradients(batch)
        if self._step.device != "cpu":
            own_loss, own = self._step.gradients(batch)
            apart = abs(own_loss - loss) / max(1.0, abs(loss)), _apart(own, exact)
            if not max(apart) <= self._tolerance or np.isnan(apart).any():
                self.notes = (_note(self._step.device, *apart),)
            if max(apart) > self._tolerance * COARSER:
                self.problems, self.notes = (_problem(self._step.device, *apart),), ()
        return loss, exact


def _apart(own: Arrays, exact: Arrays) -> float:
    """Return the largest difference of two sets of gradients, as a fraction of the largest that is EXACT."""
    largest = max((float(np.abs(it).max(initial=0)) for it in exact.values()), default=0.0)
    found = [float(np.abs(own[name] - it).max(initial=0)) for name, it in exact.items()]
    return max(found, default=0.0) / largest if largest else 0.0


def _problem(device: str, loss: float, gradients: float) -> str:
    return (
        f"on {device}, where it trains, MLX has a loss that is {loss:.1e} and gradients that are up to"
        f" {gradients:.1e} (of the largest) from its own on the CPU, more than TF32 explains: train with"
        " device: cpu, or backend: torch, and report the model"
    )


def _note(device: str, loss: float, gradients: float) -> str:
    return (
        f"MLX was compared with PyTorch on the CPU; on {device}, where it trains, the loss is {loss:.1e} and"
        f" gradients are up to {gradients:.1e} (of the largest) from that; TF32 explains about 1e-3, and"
        " MLX_ENABLE_TF32=0 in the environment turns it off"
    )
