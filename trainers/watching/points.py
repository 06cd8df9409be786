"""The last point of a run that it could go on from, and the checkpoint made of it where the run hangs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..runs.carried import Carried
from ..runs.checkpoint import Checkpoint, Checkpoints
from .held import Held

DUE: Final = "due"  # in the facts of a checkpoint: what was due after its update has not been done


def facts_of(carried: Carried, *, due: bool = False) -> dict[str, Any]:
    """Return what a checkpoint says of CARRIED, and where what is DUE after it has not been done."""
    return {"progress": asdict(carried), "best_step": carried.best_step} | (
        {DUE: due} if due else {}
    )


class Point(NamedTuple):
    """A run after an update whose figures have been read.

    Attributes:
        step: updates done.
        held: the state of the step.
        facts: of its checkpoint.
    """

    step: int
    held: Held
    facts: dict[str, Any]


class LastPoint:
    """The last point behind the last checkpoint, if there is one.

    Args:
        checkpoints: where it is written to.
        given: facts that every checkpoint of the run has.
    """

    def __init__(self, checkpoints: Checkpoints, given: Mapping[str, Any]) -> None:
        self._checkpoints, self._given = checkpoints, given
        self._point: Point | None = None

    def reach(self, step: int, held: Held, carried: Carried) -> None:
        """Note that STEP updates are done, and nothing yet that is due after them."""
        self._point = Point(step, held, facts_of(carried, due=True))

    def settle(self, carried: Carried) -> None:
        """Note that what was due is done, which left CARRIED."""
        if self._point:
            self._point = self._point._replace(facts=facts_of(carried))

    def forget(self) -> None:
        """Note that the run is at a checkpoint."""
        self._point = None

    def write(self) -> Path | None:
        """Write a checkpoint of the point, with all that a run needs to go on; ``None`` where there is none.

        By another thread than that of the run, which may be in the middle of anything but another point.
        """
        point = self._point
        arrays = point.held.arrays() if point else None
        if point is None or arrays is None:
            return None
        checkpoint = Checkpoint(point.step, arrays, {**point.facts, **self._given})
        return self._checkpoints.write_last(checkpoint)
