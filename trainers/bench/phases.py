"""Where the time of an update goes, from passes that are each a part of the next."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from ...converters.values import Array
from ..data.batches import Batch
from ..steps.base import Step

SIDES: Final = ("query", "document")
WHOLE: Final = "whole"
PASSES: Final = {"forward": "forward", "backward": "backward", "update": "update"}
WITH_SIDES: Final = {
    "query": "query forward",
    "document": "document forward",
    **PASSES,
    "forward": "scoring and loss",
}
Work = Callable[[], object]
Clock = Callable[[], float]


class Phases(NamedTuple):
    """An update taken apart.

    Attributes:
        milliseconds: of every phase, by its name.
        percent: what they add up to, of updates that were timed apart from them.
    """

    milliseconds: dict[str, float]
    percent: float


def phases(step: Step, batch: Batch, rate: float, rounds: int) -> Phases:
    """Return the phases of an update on BATCH, medians of ROUNDS.

    A forward pass, a forward and backward pass, and a whole update are timed in turns, and the whole
    update once more; a phase is what one takes longer than the one before, as a part of that turn's
    update. On a CPU it is the time of this process's processors that counts, so that other programs
    change nothing. Where the objective embeds queries and documents, these are phases of the forward
    pass, and scores with the loss are the rest of it.

    Args:
        step: the model; it is trained on.
        batch: the inputs.
        rate: learning rate.
        rounds: how often everything is timed.
    """

    def advance() -> None:
        step.advance([batch], rate)()

    forward, backward = step.passes(batch)
    works = {"forward": forward, "backward": backward, "update": advance, WHOLE: advance}
    sides = {name: given for name in SIDES if (given := _side(name, batch.inputs))}
    if len(sides) == len(SIDES):
        works = {name: _embedding(step, given) for name, given in sides.items()} | works
    return taken_apart(in_turns(works, rounds, clock_of(step.device)))


def clock_of(device: str) -> Clock:
    """Return what tells the seconds of work on DEVICE: processor time on a CPU.

    >>> clock_of("cpu") is time.process_time, clock_of("cuda") is time.perf_counter
    (True, True)
    """
    return time.process_time if device == "cpu" else time.perf_counter


def taken_apart(turns: Mapping[str, list[float]]) -> Phases:
    """Return the phases by the seconds that every pass took in each turn.

    >>> taken_apart({"forward": [1, 2], "backward": [3, 6], "update": [4, 8], "whole": [4, 8]})
    Phases(milliseconds={'forward': 1500.0, 'backward': 3000.0, 'update': 1500.0}, percent=100.0)
    """
    whole = turns[WHOLE]
    share = {
        name: statistics.median(own / all_ for own, all_ in zip(each, whole, strict=True))
        for name, each in turns.items()
    }
    names = WITH_SIDES if SIDES[0] in share else PASSES
    sides = [*accumulate(share[name] for name in SIDES if name in share)]
    passes = [share[name] for name in PASSES]
    ends = [*accumulate([0.0, *sides, *passes], max)]  # no phase takes less than nothing
    took = 1000 * statistics.median(whole)
    parts = zip(names.values(), pairwise(ends), strict=True)
    return Phases(
        {name: round(took * (end - begin), 3) for name, (begin, end) in parts},
        round(100 * ends[-1], 1),
    )


def in_turns(works: Mapping[str, Work], rounds: int, clock: Clock) -> dict[str, list[float]]:
    """Return the seconds of CLOCK that each of WORKS took in ROUNDS turns, after one that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            begin = clock()
            work()
            if number:
                seconds[name].append(clock() - begin)
    return seconds


def _side(name: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
    start = f"{name}_"
    return {key.removeprefix(start): it for key, it in inputs.items() if key.startswith(start)}


def _embedding(step: Step, inputs: Mapping[str, Array]) -> Work:
    return lambda: step.embed(inputs)
