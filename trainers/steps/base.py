"""What a framework has to do in a training run: one update, and let itself be looked at."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from ...converters.values import Array
from ..data.batches import Batch, Dataset
from ..ranks import Ranks
from ..watching.held import Held

Arrays = Mapping[str, Array]
PARAMETERS: Final = "parameters/"  # what begins the names of a state
BUFFERS: Final = "buffers/"
OPTIMIZER: Final = "optimizer/"
EXTRAS: Final = "extras/"  # see scaling.py
EXAMPLE_ROWS: Final = 3  # of the batch that is recorded: no other size is likely to be three


def example_of(data: Dataset) -> Batch:
    """Return the batch of DATA that is recorded; where there are fewer examples, some again."""
    return data.batch([row % len(data) for row in range(EXAMPLE_ROWS)])


class Measures(NamedTuple):
    """What one update reports: the loss before it, and the norm of the gradient before clipping."""

    loss: float
    gradient_norm: float
    finite: bool  # otherwise the update was skipped
    overflow: bool = False  # skipped for the scale of the loss alone, which is smaller from now on


def measures(loss: float, norm: float, scale: float) -> Measures:
    """Return what an update with these figures reports.

    Args:
        loss: before it.
        norm: of the gradient.
        scale: that the loss was multiplied by.
    """
    finite = math.isfinite(loss) and math.isfinite(norm)
    overflow = math.isfinite(loss) and not math.isfinite(norm) and scale > 1
    return Measures(loss, norm, finite, overflow)


class Step(Protocol):
    """A model under training. Names are those of the loss module: ``model.<torch name>``."""

    backend: str
    device: str  # where it computes: ``cpu``, ``metal``, ``mps`` or ``cuda``
    notices: list[str]  # what a person should know about how it runs
    chunked: bool  # whether it embeds the texts of a batch in parts
    weight: Callable[[Batch], float]  # how much the loss of a batch is the mean of
    ranks: Ranks  # that take part in every update
    ahead: bool  # whether an update may still be computed when the next one is started

    @property
    def written(self) -> Sequence[str]:
        """The names of the buffers that train mode writes."""
        ...

    def advance(self, batches: Sequence[Batch], learning_rate: float) -> Callable[[], Measures]:
        """Start one update and return how to wait for its measures.

        The gradient is the mean over all BATCHES, those of the other ranks too, each weighted as the
        objective says. When it or
        the loss is not finite nothing changes but the random state.
        """
        ...

    def gradients(self, batch: Batch) -> tuple[float, dict[str, Array]]:
        """Return the loss of BATCH and the gradient of every trainable parameter; change nothing.

        In train mode, unless that draws random numbers: then in eval mode, for comparison.
        """
        ...

    def passes(self, batch: Batch) -> tuple[Callable[[], object], Callable[[], object]]:
        """Return a forward pass on BATCH as an update has it, and one with its backward pass, to be timed.

        Each is complete when it returns, and no parameter changes.
        """
        ...

    def loss(self, inputs: Arrays) -> float:
        """Return the loss of a batch in eval mode."""
        ...

    def embed(self, inputs: Arrays) -> Array:
        """Return what the objective's module for evaluation computes, in eval mode."""
        ...

    def trainable(self) -> dict[str, Array]:
        """Return a copy of every trainable parameter."""
        ...

    def weights(self) -> dict[str, Array]:
        """Return a copy of all that evaluation depends on and training changes.

        These are the trainable parameters, or their averages, and the buffers that train mode writes.
        """
        ...

    def assign(self, values: Arrays) -> None:
        """Set trainable parameters, and their averages, or buffers."""
        ...

    def state(self) -> dict[str, Array]:
        """Return everything that training changes: parameters, buffers, optimizer and random state."""
        ...

    def held(self) -> Held:
        """Return the state as it is now, which stays readable as long as no update writes over it."""
        ...

    def random(self) -> Array:
        """Return the random state."""
        ...

    def restore(self, state: Arrays) -> None:
        """Go back to a state."""
        ...

    def peak_memory(self) -> int:
        """Return the most bytes in use so far, beyond what there was at the start; see ``memory.py``."""
        ...


def shares(weight: Callable[[Batch], float], batches: Sequence[Batch]) -> list[tuple[Batch, float]]:
    """Return BATCHES with their shares of an update; those in which nothing counts are left out.

    Args:
        weight: how much the loss of a batch is the mean of.
        batches: the micro-batches of the update.
    """
    weights = [weight(batch) for batch in batches]
    total = sum(weights)
    if not total:  # the loss will not be finite, and the update be skipped
        return [(batches[0], 1.0)]
    return [(batch, own / total) for batch, own in zip(batches, weights, strict=True) if own]


def below(prefix: str, state: Arrays) -> dict[str, Array]:
    """Return what of STATE has names that begin with PREFIX, without it."""
    return {
        name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)
    }
