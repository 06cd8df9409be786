"""What an update in MLX does with a gradient: its norm, clipping, the optimizer; nothing where it is not finite."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any, Final, NamedTuple

import mlx.core as mx
from mlx.utils import tree_flatten

from .mlx_optimizers import Optimizers, chosen, computed_once
from .scaling import MlxExtras

Wrap = Callable[[Any], Any]
Buffers = dict[str, mx.array]
SMALL: Final = 2**16
BLOCK: Final = 1024  # squares in one product; MLX's long sums in float32 on a CPU are 0.1 % off


class Figures(NamedTuple):
    """What an update is reported by."""

    loss: mx.array
    norm: mx.array  # of the gradient, before clipping
    scale: mx.array  # of the loss


class Update:
    """The second half of an update.

    A processor is done with a gradient before anything else begins, so it is looked at, and what is not
    finite never gets to the optimizer. A GPU would wait for that: it computes all, and chooses by element
    between old and new.

    Args:
        model: the captured module.
        optimizer: of its trainable parameters.
        extras: the scale of the loss and averages.
        clip_norm: the largest norm; ``None`` for any.
        buffers: returns the buffers that train mode writes.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Optimizers,
        extras: MlxExtras,
        clip_norm: float | None,
        buffers: Callable[[], Buffers],
    ) -> None:
        self._model, self._optimizer, self._extras = model, optimizer, extras
        self._limit = math.inf if clip_norm is None else clip_norm
        self._buffers = buffers
        self.build(lambda function: function)

    def build(self, wrap: Wrap) -> None:
        """Set the functions; WRAP compiles one, or returns it as it is."""
        self.measure: Any = wrap(self.norm)
        self._change: Any = wrap(self._apply)

    def __call__(self, loss: mx.array, norm: mx.array, gradients: Any, buffers: Buffers) -> Figures:
        """Update by GRADIENTS, once they are computed.

        Args:
            loss: of the update.
            norm: of the gradients, by :meth:`norm` or ``measure``, which is this compiled.
            gradients: by parameter, times the scale.
            buffers: as they were before the forward pass.
        """
        figures = Figures(loss, norm, self._extras.scale)
        if mx.all(mx.isfinite(mx.stack([loss, norm]))).item():
            self._change(gradients, norm)
            return figures
        self._model.load_weights([*buffers.items()], strict=False)
        self._extras.after(mx.array(False), self._parameters())
        return figures

    def unseen(self, loss: mx.array, gradients: Any, buffers: Buffers) -> Figures:
        """Update by GRADIENTS that nobody has looked at; see ``__call__``."""
        figures = Figures(loss, self.norm(gradients), self._extras.scale)
        finite = mx.all(mx.isfinite(mx.stack([loss, figures.norm])))
        self._apply(gradients, figures.norm, finite)
        kept = chosen(finite, self._buffers(), buffers)
        self._model.load_weights([*kept.items()], strict=False)
        return figures

    def _parameters(self) -> dict[str, mx.array]:
        return dict(tree_flatten(self._model.trainable_parameters()))

    def norm(self, gradients: Any) -> mx.array:
        """Return the norm of GRADIENTS, which are times the scale of the loss."""
        flat: Any = tree_flatten(gradients)
        arrays = _joined([it for _, it in flat])
        return mx.sqrt(reduce(mx.add, map(_squares, arrays))) / self._extras.scale

    def _apply(self, gradients: Any, norm: mx.array, finite: mx.array | None = None) -> None:
        """Clip and update; where not FINITE nothing changes but the scale of the loss."""
        share = mx.minimum(self._limit / (norm + 1e-6), 1.0) / self._extras.scale
        factor = computed_once(share)
        flat: Any = tree_flatten(gradients)
        clipped = {name: gradient * factor for name, gradient in flat}
        new = self._optimizer.apply(clipped, self._parameters(), finite)
        self._model.load_weights([*new.items()], strict=False)
        self._extras.after(mx.array(True) if finite is None else finite, new)


def on_processor() -> bool:
    """Return whether MLX computes on the CPU."""
    return bool(mx.default_device() == mx.Device(mx.cpu))


def _joined(arrays: list[mx.array]) -> list[mx.array]:
    """Return ARRAYS with the small ones as one, on a CPU, where starting an operation on each is what takes time."""
    small = [it.reshape(-1) for it in arrays if it.size < SMALL] if on_processor() else []
    if len({it.dtype for it in small}) != 1:
        return arrays
    return [mx.concatenate(small), *(it for it in arrays if it.size >= SMALL)]


def _squares(array: mx.array) -> mx.array:
    """Return the sum of the squares of ARRAY; on a CPU products are four times as fast as a sum, and exacter."""
    if not on_processor() or array.size < BLOCK:
        return mx.sum(mx.square(array))
    numbers = array.reshape(-1)
    whole = array.size // BLOCK * BLOCK
    rows = numbers[:whole].reshape(-1, 1, BLOCK)
    found = mx.sum(rows @ rows.swapaxes(1, 2))
    return found + _squares(numbers[whole:]) if whole < array.size else found
