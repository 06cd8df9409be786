"""How long a run is: in updates, or in epochs."""

from __future__ import annotations

from collections.abc import Sized
from typing import NamedTuple

from ..config import TrainConfig
from ..data.batches import Order


class Length(NamedTuple):
    """The length of a run.

    Attributes:
        steps: updates; the most there can be where ``examples`` says when it ends.
        examples: drawn from the order of the data, where the run has epochs and batches vary in size.
        unit: examples that count as one step of the learning rate's schedule then.
    """

    steps: int
    examples: int | None = None
    unit: int = 1

    def over(self, done: int, position: int) -> bool:
        """Return whether a run that has DONE updates and drawn up to POSITION is at its end."""
        return done >= self.steps if self.examples is None else position >= self.examples

    def progress(self, done: int, position: int) -> tuple[int, int]:
        """Return how far the schedule is, and how far it goes."""
        if self.examples is None:
            return done, self.steps
        return position // self.unit, self.examples // self.unit


def length_of(config: TrainConfig, order: Order) -> Length:
    """Return the length of a run of CONFIG through ORDER."""
    if config.epochs is None:
        return Length(config.steps)
    batches = 0
    while order.epoch(batches) < config.epochs:
        batches += 1
    examples = batches * config.largest_batch
    unit = config.smallest_batch * config.accumulation
    steps = max(1, examples // unit)
    return Length(steps, examples, unit) if config.dynamic_batch else Length(steps)


def about(config: TrainConfig, examples: Sized) -> int:
    """Return about how many updates a run of CONFIG on EXAMPLES has, before the order of the data is known."""
    if config.epochs is None:
        return config.steps
    return config.epochs * len(examples) // (config.smallest_batch * config.accumulation)
