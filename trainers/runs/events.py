"""The events of a run, and plain lines of text for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TextIO

MEGABYTE: Final = 1_000_000
TIMES: Final = frozenset(  # fields of a record that differ between equal runs
    {
        *("elapsed", "samples_per_second", "tokens_per_second", "waited", "peak_memory_mb"),
        *("process_mb", "processors", "device_utilisation"),
    }
)


class Started(NamedTuple):
    """The run begins or goes on."""

    step: int  # updates done already
    steps: int  # at most, where the size of batches varies
    epoch_steps: int  # updates in an epoch


class Updated(NamedTuple):
    """One update is done.

    Attributes:
        step: its number, from 1.
        epoch: of its first example, from 0.
        batch_size: examples in each of its micro-batches.
        loss: before it.
        learning_rate: of it.
        gradient_norm: before clipping.
        skipped: the loss or the gradient was not finite.
        elapsed: seconds of training so far, those of resumed processes included.
        samples_per_second: examples a second.
        tokens_per_second: tokens before padding a second, or numbers of a series.
        waited: seconds for its examples.
        peak_memory_mb: the most that the backend had in use so far, in MB (1,000,000 bytes).
        process_mb: resident size of the process now, likewise; the same thing in every backend.
        processors: cores that were busy for this process, on average.
        device_utilisation: part of the time in which the GPU was busy; ``None`` where nothing tells.
    """

    step: int
    epoch: int
    batch_size: int
    loss: float
    learning_rate: float
    gradient_norm: float
    skipped: bool
    elapsed: float = 0.0
    samples_per_second: float = 0.0
    tokens_per_second: float = 0.0
    waited: float = 0.0
    peak_memory_mb: float = 0.0
    process_mb: float = 0.0
    processors: float = 0.0
    device_utilisation: float | None = None


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
    >>> for step in (1, 2):
    ...     lines(Updated(step, 0, 16, 2.5, 1e-3, 0.7, False, tokens_per_second=1e3, peak_memory_mb=20))
    step 2/100  loss 2.5000  rate 1.0e-03  gradient 0.70  1000 tokens/s  20 MB
    >>> lines(Validated(2, {"mrr": 0.625}, True))
    step 2/100  validation mrr 0.6250 (best)
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._steps, self._every, self._size = stream, 0, 1, 0

    def __call__(self, event: Event) -> None:
        """Write EVENT, or keep quiet about it."""
        if isinstance(event, Updated):
            self._resized(event)
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

    def _resized(self, event: Updated) -> None:
        """Write that batches have another size from EVENT on."""
        if self._size not in {0, event.batch_size}:
            self._write(f"step {event.step}/{self._steps}  batch size {event.batch_size}")
        self._size = event.batch_size

    def _write(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()


def describe_update(event: Updated) -> str:
    """Return an update in one line, without its number."""
    if event.skipped:
        return "skipped: the loss or the gradient is not finite"
    return (
        f"loss {event.loss:.4f}  rate {event.learning_rate:.1e}  gradient {event.gradient_norm:.2f}"
        f"  {event.tokens_per_second:.0f} tokens/s  {event.peak_memory_mb:.0f} MB"
    )


def describe_validation(event: Validated) -> str:
    """Return a validation in one line, without its number."""
    figures = "  ".join(f"{name} {value:.4f}" for name, value in event.metrics.items())
    return f"validation {figures}" + (" (best)" if event.best else "")
