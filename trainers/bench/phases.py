"""Where the time of an update goes, from passes that are each a part of the next."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from ...converters.values import Array
from ..data.batches import Batch
from ..steps.base import Step

SIDES: Final = ("query", "document")
Work = Callable[[], object]


def phases(step: Step, batch: Batch, rate: float, rounds: int) -> tuple[dict[str, float], float]:
    """Return the milliseconds of every phase of an update on BATCH, medians of ROUNDS, and of a whole one.

    A forward pass, a forward and backward pass, and a whole update are timed in turns; a phase is what
    one takes longer than the one before. The whole update is timed once more in every turn, apart. Where the objective embeds queries and documents, these are
    phases of the forward pass, and scores with the loss are the rest of it.

    Args:
        step: the model; it is trained on.
        batch: the inputs.
        rate: learning rate.
        rounds: how often everything is timed.
    """

    def advance() -> None:
        step.advance([batch], rate)()

    works: dict[str, Work] = passes(step, batch) | {"update": advance, "whole": advance}
    sides = {name: given for name in SIDES if (given := _side(name, batch.inputs))}
    if len(sides) == len(SIDES):
        works = {name: _embedding(step, given) for name, given in sides.items()} | works
    times = _interleaved(works, rounds)
    forward, backward = times["forward"], max(0.0, times["backward"] - times["forward"])
    update = max(0.0, times["update"] - max(times["backward"], forward))
    parts = {f"{name} forward": times[name] for name in sides if name in times}
    rest = max(0.0, forward - sum(parts.values()))
    begin = parts | {"scoring and loss": rest} if parts else {"forward": forward}
    found = begin | {"backward": backward, "update": update}
    rounded = {name: round(1000 * seconds, 3) for name, seconds in found.items()}
    return rounded, round(1000 * times["whole"], 3)


def passes(step: Step, batch: Batch) -> dict[str, Work]:
    """Return a forward pass and a forward and backward pass of STEP, each complete when it returns."""
    whole = step.backend == "mlx" and not step.chunked
    return _in_mlx(step, batch) if whole else _by_the_step(step, batch)


def _in_mlx(step: Any, batch: Batch) -> dict[str, Work]:
    import mlx.core as mx
    from mlx import nn

    fed = {name: mx.array(array) for name, array in batch.inputs.items()}
    differentiate: Any = nn.value_and_grad(step.model, lambda: step.model(**fed))
    return {
        "forward": lambda: mx.eval(step.model(**fed)),
        "backward": lambda: mx.eval(differentiate()),
    }


def _by_the_step(step: Any, batch: Batch) -> dict[str, Work]:
    return {
        "forward": lambda: step.loss(batch.inputs),
        "backward": lambda: step.gradients(batch),
    }


def _side(name: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
    start = f"{name}_"
    return {key.removeprefix(start): it for key, it in inputs.items() if key.startswith(start)}


def _embedding(step: Step, inputs: Mapping[str, Array]) -> Work:
    return lambda: step.embed(inputs)


def _interleaved(works: Mapping[str, Work], rounds: int) -> dict[str, float]:
    """Return the median seconds of each of WORKS, timed in turns after one that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            begin = time.perf_counter()
            work()
            if number:
                seconds[name].append(time.perf_counter() - begin)
    return {name: statistics.median(them) for name, them in seconds.items()}
