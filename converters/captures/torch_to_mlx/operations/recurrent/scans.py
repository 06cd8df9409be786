"""Linear recurrences along an axis: states that decay and get something added, as in Mamba."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from ..gradients import Custom
from ..registry import operation
from .loops import joined


def _states(decay: mx.array, added: mx.array) -> mx.array:
    """Return h_t = decay_t h_(t-1) + added_t for all t, shape ``(time, ...)``, from h = 0."""
    state, states = None, []
    for factor, term in zip(mx.unstack(decay), mx.unstack(added), strict=True):
        state = term if state is None else factor * state + term
        states.append(state)
    return joined(states)


_scan = Custom(_states)


@_scan.vjp
def _scan_gradient(operands: Any, cotangent: mx.array, states: mx.array) -> Any:
    """Go back by the same recurrence: g_t = cotangent_t + decay_(t+1) g_(t+1)."""
    decay, _ = operands
    after = mx.concatenate([decay[1:], mx.zeros_like(decay[:1])])
    found = _scan(after[::-1], cotangent[::-1])[::-1]
    before = mx.concatenate([mx.zeros_like(states[:1]), states[:-1]])
    return found * before, found


@operation("weighbridge.linear_scan.default")
def _linear_scan(decay: mx.array, added: mx.array, dim: int) -> mx.array:
    states: mx.array = _scan(mx.moveaxis(decay, dim, 0), mx.moveaxis(added, dim, 0))
    return mx.moveaxis(states, 0, dim)
