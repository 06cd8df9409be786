"""Recurrent layers: several of them over each other, in one direction or both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from ..elementwise.randomness import drop
from ..registry import operation
from . import cells
from .cells import Arrays, Cell
from .loops import Loop, loop_of
from .packed import going_on


class Weights(NamedTuple):
    """The weights of one direction of one layer, as torch stores them."""

    entering: mx.array
    returning: mx.array
    biases: Sequence[mx.array] = ()
    projection: Sequence[mx.array] = ()

    def in_order(self, order: tuple[int, ...]) -> Weights:
        """Return the weights with their gates in ORDER."""
        entering, returning, *biases = (
            _in_order(w, order) for w in (self.entering, self.returning, *self.biases)
        )
        return Weights(entering, returning, biases, self.projection)


def _in_order(weight: mx.array, order: tuple[int, ...]) -> mx.array:
    if order == tuple(range(len(order))):
        return weight
    parts = mx.split(weight, len(order))
    return mx.concatenate([parts[i] for i in order])


def _grouped(params: Sequence[mx.array], has_biases: bool, projected: bool) -> Iterator[Weights]:
    """Yield PARAMS by direction: entering, returning, two biases, a projection."""
    biases, projection = 2 * has_biases, int(projected)
    count = 2 + biases + projection
    for i in range(0, len(params), count):
        own = params[i : i + count]
        yield Weights(own[0], own[1], own[2 : 2 + biases], own[2 + biases :])


def _for_loop(cell: Cell, weights: Weights) -> tuple[mx.array | None, list[mx.array]]:
    """Return the bias of the input's share, and the weights that CELL takes."""
    biases = weights.biases
    if cell is cells.GRU:  # its new gate multiplies the returning bias
        entering, returning = biases or (None, mx.zeros(len(weights.returning)))
        returning = returning.astype(weights.returning.dtype)
        return entering, [weights.returning.T, returning]
    bias = biases[0] + biases[1] if biases else None
    return bias, [weights.returning.T, *(projection.T for projection in weights.projection)]


def _share(x: mx.array, weights: Weights, bias: mx.array | None) -> mx.array:
    """Return the input's share of the gates."""
    turned = weights.entering.T
    return x @ turned if bias is None else mx.addmm(bias, x, turned)


def _direction(
    loop: Loop, x: mx.array, state: Arrays, weights: Weights, alive: Arrays
) -> tuple[mx.array, list[mx.array]]:
    """Run X, time first, in one direction; return the hidden states and the last state."""
    weights = weights.in_order(loop.cell.order)
    bias, own = _for_loop(loop.cell, weights)
    states = loop_of(loop)(_share(x, weights, bias), list(state), own, list(alive))
    output = states[0] * alive[0] if alive else states[0]
    return output, [loop.last(steps) for steps in states]


class Form(NamedTuple):
    """What a recurrent layer says of itself, in the terms of torch's schema."""

    has_biases: bool
    num_layers: int
    dropout: float
    train: bool
    bidirectional: bool


def run_layers(
    cell: Cell,
    x: mx.array,
    starts: Sequence[mx.array],
    params: Sequence[mx.array],
    form: Form,
    alive: Arrays = (),
) -> tuple[mx.array, ...]:
    """Run X, shape ``(time, batch, features)``, from STARTS, each ``(layers x directions, batch, ...)``.

    ALIVE has nothing in it, or an array of shape ``(time, batch, 1)``: 1 where a sequence has not ended.
    Returns the output of the last layer and the last states.
    """
    projected = len(starts) == 2 and starts[0].shape[-1] != starts[1].shape[-1]
    weights = list(_grouped(params, form.has_biases, projected))
    directions, final = 1 + form.bidirectional, []
    for layer in range(form.num_layers):
        if layer and form.train and form.dropout:
            x = drop(x, form.dropout)[0]
        outputs = []
        for backwards in range(directions):
            at = layer * directions + backwards
            state = [start[at] for start in starts]
            y, last = _direction(Loop(cell, bool(backwards)), x, state, weights[at], alive)
            outputs.append(y)
            final.append(last)
        x = mx.concatenate(outputs, axis=-1) if directions > 1 else outputs[0]
    return (x, *(mx.stack(list(states)) for states in zip(*final, strict=True)))


def _recurrent(cell: Cell) -> Callable[..., tuple[mx.array, ...]]:
    def run(
        input_: mx.array,
        hx: mx.array | Sequence[mx.array],
        params: Sequence[mx.array],
        batch_first: bool,
        lengths: mx.array | None = None,
        **form: Any,
    ) -> tuple[mx.array, ...]:
        x = mx.swapaxes(input_, 0, 1) if batch_first else input_
        alive = [] if lengths is None else [going_on(len(x), lengths)[..., None].astype(x.dtype)]
        starts = [hx] if isinstance(hx, mx.array) else hx
        y, *last = run_layers(cell, x, starts, params, Form(**form), alive)
        return (mx.swapaxes(y, 0, 1) if batch_first else y, *last)

    return run


for _name, _cell in {
    "lstm": cells.LSTM,
    "gru": cells.GRU,
    "rnn_tanh": cells.TANH,
    "rnn_relu": cells.RELU,
}.items():
    operation(f"{_name}.input", f"weighbridge.{_name}.default")(_recurrent(_cell))


def _one_step(cell: Cell) -> Callable[..., mx.array | tuple[mx.array, ...]]:
    """Make the handler of a cell that torch calls for a single step."""

    def run(
        input_: mx.array,
        hx: mx.array | Sequence[mx.array],
        w_ih: mx.array,
        w_hh: mx.array,
        b_ih: mx.array | None = None,
        b_hh: mx.array | None = None,
    ) -> mx.array | tuple[mx.array, ...]:
        biases = [b for b in (b_ih, b_hh) if b is not None]
        weights = Weights(w_ih, w_hh, biases).in_order(cell.order)
        bias, own = _for_loop(cell, weights)
        starts = [hx] if isinstance(hx, mx.array) else hx
        state = cell.step(_share(input_, weights, bias), starts, own)
        return state[0] if len(state) == 1 else tuple(state)

    return run


for _name, _cell in {
    "lstm_cell": cells.LSTM,
    "gru_cell": cells.GRU,
    "rnn_tanh_cell": cells.TANH,
    "rnn_relu_cell": cells.RELU,
}.items():
    operation(_name)(_one_step(_cell))
