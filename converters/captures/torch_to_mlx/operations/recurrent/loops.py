"""The loop over time of a cell, with a gradient of its own.

MLX would differentiate the loop step by step: each slice of the input gets a gradient as long as the
whole input, so that the cost grows with the square of the length, and weights get one product a step.
Here the way back is a loop of its own; slopes and gradients of weights are computed for all steps at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, cast

import mlx.core as mx

from ......errors import UnsupportedError
from ..gradients import Custom
from .cells import Arrays, Cell, Steps, summed


class Loop(NamedTuple):
    """A cell, and whether it goes from the last step to the first."""

    cell: Cell
    backwards: bool

    def ordered(self, steps: Sequence[mx.array]) -> list[mx.array]:
        """Return STEPS, in order of time, as the loop meets them; and the other way round."""
        return list(steps[::-1] if self.backwards else steps)

    def before(self, after: Sequence[mx.array], start: mx.array) -> mx.array:
        """Return the state before each step, from those AFTER each, in order of time."""
        return joined([*after[1:], start] if self.backwards else [start, *after[:-1]])

    def last(self, steps: Any) -> Any:
        """Return the last of STEPS that the loop meets."""
        return steps[0 if self.backwards else -1]


def joined(steps: Sequence[mx.array]) -> mx.array:
    """Return STEPS as one array, time first."""
    return mx.concatenate(list(steps), axis=0).reshape(len(steps), *steps[0].shape)


def _run(
    loop: Loop, entering: mx.array, state: Arrays, weights: Arrays, alive: Arrays
) -> list[mx.array]:
    """Return each of the states after every step."""
    flags = loop.ordered(mx.unstack(alive[0])) if alive else [None] * len(entering)
    states = []
    for x, flag in zip(loop.ordered(mx.unstack(entering)), flags, strict=True):
        new = loop.cell.step(x, state, weights)
        if flag is not None:
            new = [mx.where(flag, *pair) for pair in zip(new, state, strict=True)]
        states.append(state := new)
    return [joined(loop.ordered(steps)) for steps in zip(*states, strict=True)]


def _step_back(
    cell: Cell, gradient: Arrays, slopes: Arrays, weights: Arrays, alive: mx.array | None
) -> tuple[mx.array, Arrays, Sequence[mx.array | None]]:
    """Return the gradients of the product, of the state entered, and of the state before without it.

    Where a sequence has ended, the state passes unchanged.
    """
    if alive is None:
        product, direct = cell.back(gradient, slopes, weights)
        return product, gradient, direct
    entered = [g * alive for g in gradient]
    product, direct = cell.back(entered, slopes, weights)
    passed = [g * (1 - alive) for g in gradient]
    both = zip(passed, direct, strict=True)
    return product, entered, [one if two is None else one + two for one, two in both]


class _Gradients(NamedTuple):
    """Gradients of the products and hidden states of all steps, and of the first state."""

    products: mx.array
    hidden: mx.array
    start: Sequence[Any]


def _run_back(
    loop: Loop, slopes: Arrays, weights: Arrays, alive: Arrays, returned: mx.array, final: Arrays
) -> _Gradients:
    """Go back from RETURNED, the gradient of every hidden state, and FINAL, of the other last states."""
    columns = [loop.ordered(mx.unstack(x))[::-1] for x in (*slopes, *alive, returned)]
    flags = columns[-2] if alive else [None] * len(returned)
    turned = weights[0].T
    gradient, products, hidden = [columns[-1][0], *final], [], []
    following = [*columns[-1][1:], mx.zeros_like(columns[-1][0])]
    for *slope, flag, after in zip(*columns[: len(slopes)], flags, following, strict=True):
        product, entered, direct = _step_back(loop.cell, gradient, slope, weights, flag)
        base = after if direct[0] is None else after + direct[0]
        others: Any = direct[1:]
        gradient = [mx.addmm(base, product, turned), *others]
        products.append(product)
        hidden.append(entered[0])
    both = [joined(loop.ordered(column[::-1])) for column in (products, hidden)]
    return _Gradients(both[0], both[1], gradient)


def _gradients(loop: Loop, primals: Any, cotangents: Arrays, outputs: Arrays) -> list[Any]:
    """Return the gradients of the arguments of a function made by :func:`loop_of`."""
    entering, state, weights, alive = primals
    before = [loop.before(mx.unstack(x), start) for x, start in zip(outputs, state, strict=True)]
    slopes = loop.cell.slopes(Steps(entering, before, outputs), weights)
    final = [loop.last(cotangent) for cotangent in cotangents[1:]]
    found = _run_back(loop, slopes, weights, alive, cotangents[0], final)
    share, second = loop.cell.gradients(found.products, found.hidden, slopes)
    own = [summed(before[0], found.products), *([] if second is None else [second])]
    return [share, list(found.start), own, [mx.zeros_like(flags) for flags in alive]]


@cache
def loop_of(loop: Loop) -> Any:
    """Return the function that runs LOOP.

    It takes the input's share of the gates, shape ``(time, batch, gates)``; the state, a list of
    shapes ``(batch, features)``; the weights of the cell; and a list with nothing, or with an array of
    shape ``(time, batch, 1)`` that is 1 where a sequence has not ended. It returns each of the states
    after every step, shape ``(time, batch, features)``; a gradient may come back to all of the first,
    but only to the last step of another.
    """

    def run(entering: mx.array, state: Any, weights: Any, alive: Any) -> Any:
        return _run(loop, entering, state, weights, alive)

    def back(primals: Any, cotangents: Any, outputs: Any) -> Any:
        return _gradients(loop, primals, cotangents, outputs)

    forward, backward = Custom(run), Custom(back)
    forward.vjp(lambda *given: (*cast(Any, backward)(*map(list, given)),))
    backward.vjp(_refused)
    return forward


def _refused(*_: Any) -> Any:
    raise UnsupportedError(
        "the gradient of a gradient of a recurrent layer is not available: differentiate once, "
        "or write the cell's operations out in the module"
    )
