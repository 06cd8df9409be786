"""Updates that are not finite: counted, and a run ended where there are too many or no weight is any good."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...errors import DivergedError
from ..data.batches import Batch
from .carried import Carried

FLOAT32 = float(np.finfo(np.float32).max)


def refuse_many(carried: Carried, limit: int, batches: Sequence[Batch], path: Path) -> None:
    """Stop where LIMIT updates in a row were not finite, the last of them by BATCHES, which PATH gets.

    Raises:
        DivergedError: there were as many.
    """
    if carried.in_a_row < limit:
        return
    arrays = {
        f"{number}.{name}": array
        for number, batch in enumerate(batches)
        for name, array in batch.inputs.items()
    }
    np.savez(path, **arrays)  # type: ignore[arg-type]  # numpy types its one option here too
    raise DivergedError(
        f"{carried.in_a_row} updates in a row up to step {path.stem.rpartition('-')[2]} had a loss or gradient"
        f" that is not finite; the last batch is in {path}. Try a lower learning rate:"
        " --set optimizer.learning_rate"
    )


def refuse_lost(carried: Carried, loss: float, step: int, kept: Path, *, over: bool) -> None:
    """Stop after STEP where no weight is any good.

    Updates are not finite, and neither is the LOSS that was validated after them; or the run ends so
    and never was better than at its begin.
    Updates that are not finite change nothing, so none would be better. That loss is a mean in
    float64; beyond float32 it is infinite where updates are computed.

    Raises:
        DivergedError: none is; says that the best are KEPT.
    """
    lost = not abs(loss) <= FLOAT32
    if carried.in_a_row and (lost or (over and not carried.best_step)):
        why = "the loss of the validation is not either" if lost else "no validation was any better"
        raise DivergedError(
            f"the weights have diverged: the last {carried.in_a_row} updates up to step {step}"
            f" had a loss or gradient that is not finite, and {why}. The best"
            f" weights, of step {carried.best_step}, are kept in {kept}. Try a lower learning"
            " rate: --set optimizer.learning_rate"
        )
