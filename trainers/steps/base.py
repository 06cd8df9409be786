"""What a framework has to do in a training run: one update, and let itself be looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from ...converters.values import Array
from ..data.batches import Batch

Arrays = Mapping[str, Array]


class Measures(NamedTuple):
    """What one update reports: the loss before it, and the norm of the gradient before clipping."""

    loss: float
    gradient_norm: float
    finite: bool  # otherwise the update was skipped


class Step(Protocol):
    """A model under training. Names are those of the loss module: ``model.<torch name>``."""

    backend: str

    def advance(self, batches: Sequence[Batch], learning_rate: float) -> Callable[[], Measures]:
        """Start one update and return how to wait for its measures.

        The gradient is the mean over all BATCHES, each weighted by its rows. When it or the loss
        is not finite nothing changes.
        """
        ...

    def gradients(self, batch: Batch) -> tuple[float, dict[str, Array]]:
        """Return the loss of BATCH and the gradient of every trainable parameter."""
        ...

    def loss(self, inputs: Arrays) -> float:
        """Return the loss of a batch."""
        ...

    def embed(self, inputs: Arrays) -> Array:
        """Return what the objective's module for evaluation computes."""
        ...

    def trainable(self) -> dict[str, Array]:
        """Return a copy of every trainable parameter."""
        ...

    def assign(self, values: Arrays) -> None:
        """Set trainable parameters."""
        ...

    def state(self) -> dict[str, Array]:
        """Return everything that training changes: parameters, optimizer and random state."""
        ...

    def restore(self, state: Arrays) -> None:
        """Go back to a state."""
        ...

    def peak_memory(self) -> int:
        """Return the most bytes in use so far."""
        ...
