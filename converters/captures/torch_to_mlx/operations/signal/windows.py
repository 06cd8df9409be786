"""Windows of a signal, in torch's definitions (``torch.hann_window`` and others)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import mlx.core as mx
import numpy as np

from ..registry import register

Window = Callable[..., Any]  # (length of a symmetric window, parameters) -> an array of numpy


def _cosines(terms: Sequence[float]) -> Window:
    """Return the window of TERMS a0 - a1 cos(x) + a2 cos(2 x) - ..., over one period."""

    def made(length: int) -> Any:
        angle = np.arange(length) * (2 * np.pi / max(length - 1, 1))
        waves = [(-1) ** k * a * np.cos(k * angle) for k, a in enumerate(terms)]
        return np.sum(waves, axis=0)

    return made


def _hamming(length: int, alpha: float = 0.54, beta: float = 0.46) -> Any:
    return _cosines([alpha, beta])(length)


def _kaiser(length: int, beta: float = 12.0) -> Any:
    """Kaiser and Schafer 1980."""
    return np.kaiser(length, beta)


def _handler(made: Window) -> Callable[..., mx.array]:
    """Return the handler of the window that MADE makes; a periodic one is the first of one longer by one."""

    def window(
        window_length: int, periodic: bool = True, dtype: mx.Dtype = mx.float32, **parameters: Any
    ) -> mx.array:
        if window_length < 2:
            return mx.ones(window_length, dtype)
        whole = made(window_length + periodic, **parameters)
        return mx.array(whole[:window_length], dtype)

    return window


_OVERLOADS: Final[Mapping[str, tuple[Sequence[str], Window]]] = {
    "hann": (("", ".periodic"), _cosines([0.5, 0.5])),
    "hamming": (("", ".periodic", ".periodic_alpha", ".periodic_alpha_beta"), _hamming),
    "blackman": (("", ".periodic"), _cosines([0.42, 0.5, 0.08])),
    "bartlett": (("", ".periodic"), np.bartlett),
    "kaiser": (("", ".periodic", ".beta"), _kaiser),
}
register(
    {
        " ".join(f"{name}_window{overload}" for overload in overloads): _handler(made)
        for name, (overloads, made) in _OVERLOADS.items()
    }
)
