"""Cells: one step of a recurrent layer, and what its gradient is made of.

The gradient of a step is linear in what comes back to it. Its slopes are computed for all steps at once,
from the states alone: keeping gates would cost four times the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import mlx.core as mx

Arrays = Sequence[mx.array]
Back = tuple[mx.array, Sequence[mx.array | None]]


class Steps(NamedTuple):
    """All steps of a loop, arrays of shape ``(time, batch, features)``.

    Attributes:
        entering: the input's share of the gates.
        before: the state before each step.
        after: the state after each step.
    """

    entering: mx.array
    before: Arrays
    after: Arrays


class Cell(NamedTuple):
    """One step of a recurrent layer, on arrays of shape ``(batch, features)``.

    Attributes:
        order: torch's positions of the gates, in the order in which ``step`` wants them.
        step: (share of the input, state, weights) -> state; its first array is the hidden state.
        slopes: (steps, weights) -> slopes, for ``back`` and ``gradients``.
        back: (gradient of the state, slopes of a step, weights) -> (gradient of the product with the
            state before, gradient of that state without this product's).
        gradients: (gradients of the products, of the hidden states, slopes) -> gradients of the input's
            share, and of the second weight, if there is one.
    """

    order: tuple[int, ...]
    step: Callable[[mx.array, Arrays, Arrays], Arrays]
    slopes: Callable[[Steps, Arrays], Arrays]
    back: Callable[[Arrays, Arrays, Arrays], Back]
    gradients: Callable[[mx.array, mx.array, Arrays], tuple[mx.array, mx.array | None]]


def summed(left: mx.array, right: mx.array) -> mx.array:
    """Return the sum over all steps and rows of the outer products of LEFT and RIGHT."""
    return left.reshape(-1, left.shape[-1]).T @ right.reshape(-1, right.shape[-1])


def _product(bias: mx.array, hidden: mx.array, returning: mx.array) -> mx.array:
    flat = hidden.reshape(-1, hidden.shape[-1])
    bias = bias if bias.ndim == 1 else bias.reshape(len(flat), -1)
    return mx.addmm(bias, flat, returning).reshape(*hidden.shape[:-1], -1)


def _lstm_gates(product: mx.array) -> tuple[mx.array, mx.array]:
    size = product.shape[-1] // 4 * 3
    return mx.sigmoid(product[..., :size]), mx.tanh(product[..., size:])


def _lstm_step(x: mx.array, state: Arrays, weights: Arrays) -> Arrays:
    """Hochreiter and Schmidhuber 1997; gates: input, forget, output, cell."""
    hidden, cell = state
    open_, new = _lstm_gates(mx.addmm(x, hidden, weights[0]))
    entry, keep, out = mx.split(open_, 3, axis=-1)
    cell = keep * cell + entry * new
    hidden = out * mx.tanh(cell)
    return [hidden @ weights[1] if len(weights) > 1 else hidden, cell]


def _lstm_slopes(steps: Steps, weights: Arrays) -> Arrays:
    open_, new = _lstm_gates(_product(steps.entering, steps.before[0], weights[0]))
    entry, keep, out = mx.split(open_, 3, axis=-1)
    shown = mx.tanh(steps.after[1])
    inputs = mx.concatenate([new, steps.before[1], shown], axis=-1) * (open_ * (1 - open_))
    gates = mx.concatenate([inputs, entry * (1 - new * new)], axis=-1)
    slopes = [out * (1 - shown * shown), gates, keep]
    return [*slopes, out * shown] if len(weights) > 1 else slopes


def _lstm_back(gradient: Arrays, slopes: Arrays, weights: Arrays) -> Back:
    from_hidden, gates, keep, *_ = slopes
    hidden = gradient[0] @ weights[1].T if len(weights) > 1 else gradient[0]
    cell = gradient[1] + hidden * from_hidden
    return mx.concatenate([cell, cell, hidden, cell], axis=-1) * gates, [None, cell * keep]


def _lstm_gradients(
    products: mx.array, hidden: mx.array, slopes: Arrays
) -> tuple[mx.array, mx.array | None]:
    return products, summed(slopes[3], hidden) if len(slopes) > 3 else None


def _gru_gates(x: mx.array, product: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    size = product.shape[-1] // 3 * 2
    open_ = mx.sigmoid(x[..., :size] + product[..., :size])
    returned = product[..., size:]
    return open_, returned, mx.tanh(x[..., size:] + open_[..., : size // 2] * returned)


def _gru_step(x: mx.array, state: Arrays, weights: Arrays) -> Arrays:
    """Cho et al. 2014, the reset gate after the product; gates: reset, update, new."""
    (hidden,) = state
    open_, _, new = _gru_gates(x, mx.addmm(weights[1], hidden, weights[0]))
    return [new + open_[:, hidden.shape[1] :] * (hidden - new)]


def _gru_slopes(steps: Steps, weights: Arrays) -> Arrays:
    (hidden,) = steps.before
    open_, returned, new = _gru_gates(steps.entering, _product(weights[1], hidden, weights[0]))
    reset, update = mx.split(open_, 2, axis=-1)
    slope = (1 - update) * (1 - new * new)
    opened = mx.concatenate([slope * returned, hidden - new], axis=-1) * (open_ * (1 - open_))
    return [mx.concatenate([opened, slope * reset], axis=-1), update, slope]


def _gru_back(gradient: Arrays, slopes: Arrays, _: Arrays) -> Back:
    (hidden,) = gradient
    return mx.concatenate([hidden] * 3, axis=-1) * slopes[0], [hidden * slopes[1]]


def _gru_gradients(
    products: mx.array, hidden: mx.array, slopes: Arrays
) -> tuple[mx.array, mx.array | None]:
    size = 2 * hidden.shape[-1]
    entering = mx.concatenate([products[..., :size], hidden * slopes[2]], axis=-1)
    return entering, products.reshape(-1, products.shape[-1]).sum(0)


def _plain_cell(
    function: Callable[[mx.array], mx.array], slope: Callable[[mx.array], mx.array]
) -> Cell:
    """Return Elman's cell (1990) of a FUNCTION, whose SLOPE is told from its result."""
    return Cell(
        order=(0,),
        step=lambda x, state, weights: [function(mx.addmm(x, state[0], weights[0]))],
        slopes=lambda steps, _: [slope(steps.after[0])],
        back=lambda gradient, slopes, _: (gradient[0] * slopes[0], [None]),
        gradients=lambda products, *_: (products, None),
    )


LSTM: Final = Cell((0, 1, 3, 2), _lstm_step, _lstm_slopes, _lstm_back, _lstm_gradients)
GRU: Final = Cell((0, 1, 2), _gru_step, _gru_slopes, _gru_back, _gru_gradients)
TANH: Final = _plain_cell(mx.tanh, lambda y: 1 - y * y)
RELU: Final = _plain_cell(lambda x: mx.maximum(x, 0), lambda y: (y > 0).astype(y.dtype))
