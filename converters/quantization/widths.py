"""Which weight gets how many bits: the least error that a number of bits for all of them allows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from ...errors import UnsupportedError
from .mlx import layout
from .scheme import Scheme


class Choice(NamedTuple):
    """A scheme for one weight: the bits that it takes, scales included, and its error."""

    bits: int
    error: float
    scheme: Scheme


def stored_bits(shape: tuple[int, ...], scheme: Scheme, dtype: str) -> int:
    """Return the bits that a weight of SHAPE takes by SCHEME, its scales and biases in DTYPE included.

    >>> stored_bits((64, 64), Scheme(4, 64), "F16") / 64**2
    4.5
    """
    return 8 * sum(header.nbytes for header in layout("x.weight", shape, scheme, dtype).values())


def chosen(choices: Mapping[str, list[Choice]], most: float) -> dict[str, Scheme]:
    """Return a scheme for each weight so that all take at most MOST bits, of small total error.

    From the fewest bits on, the step that lowers the error most for each bit is taken next, as long
    as there is room; steps of one weight go along the lower convex hull of its choices.

    Raises:
        UnsupportedError: even the fewest bits are more than MOST.
    """
    hulls = {name: list(hull(some)) for name, some in choices.items()}
    taken = sum(steps[0].bits for steps in hulls.values())
    if taken > most:
        raise UnsupportedError(
            f"the fewest bits that there can be are {taken:,}, not {int(most):,}"
        )
    places = dict.fromkeys(hulls, 0)
    queue = [(_slope(steps, 0), name) for name, steps in hulls.items() if len(steps) > 1]
    heapify(queue)
    while queue:
        _, name = heappop(queue)
        steps, place = hulls[name], places[name]
        more = steps[place + 1].bits - steps[place].bits
        if taken + more > most:
            continue  # others may take less
        taken, places[name] = taken + more, place + 1
        if place + 2 < len(steps):
            heappush(queue, (_slope(steps, place + 1), name))
    return {name: hulls[name][place].scheme for name, place in places.items()}


def hull(choices: list[Choice]) -> Iterator[Choice]:
    """Yield those of CHOICES that are best at some rate of error for bits, the fewest bits first."""
    best: list[Choice] = []
    for choice in sorted(choices, key=lambda it: (it.bits, it.error)):
        if best and choice.error >= best[-1].error:
            continue
        while len(best) > 1 and _slope([best[-2], best[-1]], 0) >= _slope([best[-2], choice], 0):
            best.pop()
        best.append(choice)
    yield from best


def _slope(steps: list[Choice], place: int) -> float:
    """Return how the error changes for each bit from the choice at PLACE to the next."""
    here, there = steps[place : place + 2]
    return (there.error - here.error) / (there.bits - here.bits)
