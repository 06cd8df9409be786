"""Recurrent layers, unrolled over time (so the length is part of a compiled graph)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import mlx.core as mx

from ..elementwise.elementary import sigmoid, tanh
from ..elementwise.randomness import drop
from ..registry import operation

State = list[mx.array]
Cell = Callable[[mx.array, mx.array, State], State]  # gates of the input, gates of the state, state


def _lstm_cell(entering: mx.array, returning: mx.array, state: State) -> State:
    """Hochreiter and Schmidhuber 1997, with torch's gate order: input, forget, cell, output."""
    i, f, g, o = mx.split(entering + returning, 4, axis=-1)
    cell = sigmoid(f) * state[1] + sigmoid(i) * tanh(g)
    return [sigmoid(o) * tanh(cell), cell]


def _gru_cell(entering: mx.array, returning: mx.array, state: State) -> State:
    """Cho et al. 2014, with torch's gate order: reset, update, new."""
    entering_r, entering_z, entering_n = mx.split(entering, 3, axis=-1)
    returning_r, returning_z, returning_n = mx.split(returning, 3, axis=-1)
    reset, update = sigmoid(entering_r + returning_r), sigmoid(entering_z + returning_z)
    new = tanh(entering_n + reset * returning_n)
    return [(1 - update) * new + update * state[0]]


def _relu_cell(entering: mx.array, returning: mx.array, _: State) -> State:
    return [mx.maximum(entering + returning, 0)]


def _tanh_cell(entering: mx.array, returning: mx.array, _: State) -> State:
    return [tanh(entering + returning)]


class _Weights(NamedTuple):
    """The weights of one direction of one layer; biases may be absent."""

    entering: mx.array
    returning: mx.array
    entering_bias: mx.array | float = 0.0
    returning_bias: mx.array | float = 0.0


def _scan(cell: Cell, x: mx.array, state: State, weights: _Weights, backwards: bool) -> list[State]:
    """Return the state after every step of X, shape ``(time, batch, features)``, in order of time."""
    entering = x @ weights.entering.T + weights.entering_bias
    steps = range(x.shape[0])
    states = []
    for step in reversed(steps) if backwards else steps:
        returning = state[0] @ weights.returning.T + weights.returning_bias
        state = cell(entering[step], returning, state)
        states.append(state)
    return states[::-1] if backwards else states


def _layer(
    cell: Cell, x: mx.array, initial: list[State], weights: Sequence[_Weights]
) -> tuple[mx.array, list[State]]:
    """Run one layer in each of its directions; return its output and their final states."""
    outputs, final = [], []
    for backwards, (state, own) in enumerate(zip(initial, weights, strict=True)):
        states = _scan(cell, x, state, own, bool(backwards))
        outputs.append(mx.stack([state[0] for state in states]))
        final.append(states[0] if backwards else states[-1])
    return mx.concatenate(outputs, axis=-1), final


def _recurrent(cell: Cell) -> Callable[..., tuple[mx.array, ...]]:
    def run(  # noqa: PLR0913, PLR0917 - the schema's
        input_: mx.array,
        hx: mx.array | Sequence[mx.array],
        params: Sequence[mx.array],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[mx.array, ...]:
        starts = [
            list(state) for state in zip(*([hx] if isinstance(hx, mx.array) else hx), strict=True)
        ]
        size = 4 if has_biases else 2
        weights = [_Weights(*params[i : i + size]) for i in range(0, len(params), size)]
        x = mx.swapaxes(input_, 0, 1) if batch_first else input_
        final: list[State] = []
        for layer in range(num_layers):
            if layer and train and dropout:
                x = drop(x, dropout)[0]
            here = slice(layer * (1 + bidirectional), (layer + 1) * (1 + bidirectional))
            x, ends = _layer(cell, x, starts[here], weights[here])
            final += ends
        last = [mx.stack(list(states)) for states in zip(*final, strict=True)]
        return (mx.swapaxes(x, 0, 1) if batch_first else x, *last)

    return run


for _name, _cell in {
    "lstm.input": _lstm_cell,
    "gru.input": _gru_cell,
    "rnn_tanh.input": _tanh_cell,
    "rnn_relu.input": _relu_cell,
}.items():
    operation(_name)(_recurrent(_cell))
