"""A conversion, planned: the map bound to the tensors, and what only other checkpoints have."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ...errors import UnsupportedError
from ..checkpoints import Checkpoint
from ..maps import Plan, WeightMap
from ..models import Model
from ..quantization import Dequantized
from ..results.sources import job_key
from .conversion import Conversion
from .dense import Headers, Unpacked, as_dense, reason_of
from .fitting import blamed, require_loadable, require_possible
from .joined import in_order, join
from .sidecar import Restored, map_for, restore

NOTHING = Restored({}, ())


class Job(NamedTuple):
    """A conversion, planned.

    Attributes:
        conversion: the source, its adapter live, and the framework of the target.
        table: the map between torch and MLX names; ``None`` where none is known and none is needed.
        directed: the map from the source's names to the target's.
        plan: what pass 2 does.
        checkpoint: what it reads.
        restored: what is taken as it was before the way to MLX.
        warning: why the class that the map was learned from will not load what it makes, or what
            comes back to PyTorch otherwise than it was.
    """

    conversion: Conversion
    table: WeightMap | None
    directed: WeightMap
    plan: Plan
    checkpoint: Checkpoint
    restored: Restored = NOTHING
    warning: str | None = None

    @property
    def model(self) -> Model:
        """The source."""
        return self.conversion.model

    @property
    def to(self) -> str:
        """The framework of the target."""
        return self.conversion.to

    @property
    def key(self) -> str:
        """A fingerprint of the job: an interrupted run resumes only if nothing of it changed."""
        adapter = self.model.adapter.path if self.model.adapter else None
        beside = sorted(adapter.iterdir()) if adapter and adapter.is_dir() else [adapter]
        origins = [file for source, _ in self.restored.taken.values() for file in source.files]
        files = (*self.checkpoint.files, *dict.fromkeys(origins), *filter(None, beside))
        bound = [
            (step.identity, sorted(step.sizes.items()), sorted(step.amounts.items()))
            for step in self.plan.steps
        ]
        return job_key(files, str(self.directed), bound, self.plan.merged)

    def lines(self) -> tuple[str, ...]:
        """Return the plan, a line each."""
        trained = f"{len(self.restored.trained)} tensors of the sidecar left aside: trained since"
        notes = [f"note: {note}" for note in self.notes]
        return (*self.plan.lines(), *([trained] if self.restored.trained else []), *notes)

    @property
    def notes(self) -> list[str]:
        """What a person should know of the result."""
        tensors = self.model.tensors
        read = tensors.notes if isinstance(tensors, Dequantized) else ()
        warnings = [it for it in (self.warning, self.wide) if it]
        return [*read, *warnings, *self.restored.notes]

    @property
    def wide(self) -> str | None:
        """What is to be said of float64 numbers that MLX gets."""
        count = sum(it.dtype == "F64" for it in self.plan.layout.values())
        if self.to != "mlx" or not count:
            return None
        return f"{count} tensors stay float64, which MLX computes with on the CPU alone"


def plan_job(conversion: Conversion) -> Job:
    """Bind the map of CONVERSION to the tensors of its model, all or nothing; pass 1.

    Raises:
        MismatchError: anything does not fit, or is needed and nowhere.
        WeighbridgeError: there is no map, or the model cannot be what it says.
    """
    table = needed_map(conversion)
    there = conversion.origin
    if table is None or not there:
        return _one_way(conversion, table)
    model, original = conversion.model, conversion.original
    table = map_for(model, table, there)
    restored = restore(model, table, there, original)
    if restored.unpacked:
        return _dense(conversion, restored.unpacked)
    return _restoring(conversion, table, there, restored)


def needed_map(conversion: Conversion) -> WeightMap | None:
    """Return the map between torch and MLX; ``None`` where the framework stays and none is recorded.

    Raises:
        WeighbridgeError: there is no map, or the model cannot be what it says.
    """
    model = conversion.model
    if model.framework == conversion.to and not model.map_text:
        return None
    require_possible(model)
    try:
        table, _ = conversion.map, conversion.directed
    except UnsupportedError as error:
        raise blamed(model, error) from error
    return table


def _bound(conversion: Conversion, directed: WeightMap) -> Plan:
    model = conversion.model
    return directed.bind(
        model.checkpoint.headers,
        config=conversion.sizes_from,
        sizes=model.sizes,
        updates=model.adapter.updates if model.adapter else {},
    )


def _one_way(conversion: Conversion, table: WeightMap | None) -> Job:
    """Plan a CONVERSION for which nothing is taken from elsewhere."""
    model, directed = conversion.model, conversion.directed
    plan, warning = _bound(conversion, directed), None
    if (model.framework, conversion.to) == ("torch", "mlx"):
        warning = require_loadable(model, conversion.sizes_from, plan.layout)
    return Job(conversion, table, directed, plan, model.checkpoint, warning=warning)


def _dense(conversion: Conversion, unpacked: Unpacked) -> Job:
    """Plan the way back to PyTorch of weights that were UNPACKED and cannot be packed again."""
    note = reason_of(unpacked, conversion.model)
    bare, there, table = as_dense(conversion.model)
    restored = restore(bare, table, there, conversion.original)
    spare = tuple(name for name in unpacked.left_out if name not in there)
    restored = restored._replace(left_out=(*restored.left_out, *spare))
    return _restoring(replace(conversion, model=bare), table, there, restored, note)


def _restoring(
    conversion: Conversion,
    table: WeightMap,
    there: Headers,
    restored: Restored,
    note: str | None = None,
) -> Job:
    """Plan the way back to the checkpoint THERE, with what is RESTORED of it."""
    directed = table.inverse()
    plan, checkpoint = join(_bound(conversion, directed), conversion.model.checkpoint, restored)
    return Job(conversion, table, directed, in_order(plan, there), checkpoint, restored, note)
