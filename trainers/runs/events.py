"""The events of a run, and plain lines of text for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TextIO


class Started(NamedTuple):
    """The run begins or goes on."""

    step: int  # updates done already
    steps: int
    epoch_steps: int  # updates in an epoch


class Updated(NamedTuple):
    """One update is done."""

    step: int
    epoch: int
    loss: float
    learning_rate: float
    gradient_norm: float
    tokens_per_second: float
    peak_memory: int  # bytes
    skipped: bool  # the loss or the gradient was not finite
    waited: float = 0.0  # seconds for the data


class Validated(NamedTuple):
    """The validation split was measured."""

    step: int
    metrics: Mapping[str, float]
    best: bool


class Notice(NamedTuple):
    """Something a person should know."""

    text: str


Event = Started | Updated | Validated | Notice
Progress = Callable[[Event], None]


def ignore(_event: Event) -> None:
    """Do nothing with an event."""


class Lines:
    """Write about ten lines an epoch to a stream.

    >>> import sys
    >>> lines = Lines(sys.stdout)
    >>> lines(Started(0, 100, 20))
    training: 100 steps
    >>> lines(Updated(1, 0, 2.5, 1e-3, 0.7, 1000.0, 10**9, False))
    >>> lines(Updated(2, 0, 2.5, 1e-3, 0.7, 1000.0, 10**9, False))
    step 2/100  loss 2.5000  rate 1.0e-03  gradient 0.70  1000 tokens/s  1.0 GB
    >>> lines(Validated(2, {"mrr": 0.625}, True))
    step 2/100  validation mrr 0.6250 (best)
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._steps, self._every = stream, 0, 1

    def __call__(self, event: Event) -> None:
        """Write EVENT, or keep quiet about it."""
        if isinstance(event, Updated):
            if event.step % self._every and not event.skipped:
                return
            self._write(f"step {event.step}/{self._steps}  {describe_update(event)}")
        elif isinstance(event, Validated):
            self._write(f"step {event.step}/{self._steps}  {describe_validation(event)}")
        elif isinstance(event, Started):
            self._steps = event.steps
            self._every = max(1, min(event.steps, event.epoch_steps) // 10)
            self._write(
                f"training: {event.steps} steps"
                + (f", from step {event.step}" if event.step else "")
            )
        else:
            self._write(event.text)

    def _write(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()


def describe_update(event: Updated) -> str:
    """Return an update in one line, without its number."""
    if event.skipped:
        return "skipped: the loss or the gradient is not finite"
    return (
        f"loss {event.loss:.4f}  rate {event.learning_rate:.1e}  gradient {event.gradient_norm:.2f}"
        f"  {event.tokens_per_second:.0f} tokens/s  {event.peak_memory / 1e9:.1f} GB"
    )


def describe_validation(event: Validated) -> str:
    """Return a validation in one line, without its number."""
    figures = "  ".join(f"{name} {value:.4f}" for name, value in event.metrics.items())
    return f"validation {figures}" + (" (best)" if event.best else "")
