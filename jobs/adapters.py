"""Convert an adapter from one dialect to another: fit, carry, write, compare live, publish."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from .. import __version__
from ..converters.adapters import Adapter, read_adapter, write_adapter, write_peft
from ..converters.adapters.destinations import DESTINATIONS, next_command, problems, suited
from ..converters.adapters.fit import TIED
from ..converters.adapters.open import ADDED_TO, GRIDS, ORIGINAL
from ..converters.common.hints import command, dequantizing, unused
from ..converters.common.repositories import origin, recorded
from ..converters.models import Model
from ..converters.models.specs import exists
from ..converters.planning.adapter_names import Side, side_of
from ..converters.planning.instead import require_taken
from ..converters.planning.memory import require_memory
from ..converters.planning.opening import fitted_to
from ..converters.planning.transcoding import quantized_view
from ..converters.quantization.fingerprints import fingerprints
from ..converters.results.sources import job_key
from ..converters.results.targets import absolute
from ..converters.values import Array, LowRank
from ..errors import BadInputError, MismatchError
from ..parity.weights.sketches.recorded import weight_records
from .adapter_check import Load, check_adapter
from .converting import require_apart
from .options import WriteOptions
from .pipeline import Check, Checked, Facts, Outcome, Written, publish
from .provenance.base import (
    Provenance,
    proven,
    provenance_of,
    quantization_of,
    require_right_base,
)
from .provenance.unrecorded import on_disk

FRAMEWORKS = {"mlx": "mlx", "peft": "torch"}


class AdapterRequest(NamedTuple):
    """What is wanted of a conversion.

    Attributes:
        to: the dialect, ``mlx`` or ``peft``.
        base: the model that the converted adapter is for, in either framework.
        trained_on: the model that the adapter was trained on, if that is another one: a quantized
            sibling of BASE, which is proven.
        destination: a program whose limits the result has to keep, by its name in ``DESTINATIONS``.
    """

    to: str
    base: str
    trained_on: str | None = None
    destination: str | None = None


@dataclass(frozen=True)
class Carried:
    """An adapter on its way.

    Attributes:
        adapter: its updates under the base's own names.
        model: the base, dense, without an adapter.
        there: how the target's dialect names the base.
        updates: by the target's names.
        saved: ``modules_to_save`` tensors by the target's names.
        provenance: what the base is to the one that the adapter was trained on.
    """

    adapter: Adapter
    model: Model
    there: Side
    updates: Mapping[str, LowRank]
    saved: Mapping[str, Array]
    provenance: Provenance

    @property
    def key(self) -> str:
        """A fingerprint of the job."""
        files = sorted(path for path in self.adapter.path.parent.glob("*") if path.is_file())
        return job_key(files, self.there.framework, self.model.spec)

    def lines(self) -> tuple[str, ...]:
        """Return what is done, a line for each update."""
        rows = [
            f"{name}: rank {update.rank}, scale {update.scale:g}, {list(update.shape)}"
            + (", DoRA" if update.magnitude is not None else "")
            for name, update in sorted(self.updates.items())
        ]
        whole = [f"{name}: of modules_to_save, {list(it.shape)}" for name, it in self.saved.items()]
        return (*rows, *whole, self.provenance.message)


def convert_adapter(
    source: Path, target: Path, request: AdapterRequest, *, options: WriteOptions = WriteOptions()
) -> Outcome:
    """Convert the adapter in the directory SOURCE to TARGET, as the REQUEST says.

    Raises:
        WeighbridgeError: bad input; nothing is left behind.
    """
    reads = (source, request.base, request.trained_on)
    place = options.begin(target, "adapter", *reads)
    require_taken(source, "mlx-to-peft", "peft-to-mlx")
    adapter = read_adapter(source)
    require_dialect(adapter, request, source, target)
    carried = supported(carry(adapter, request, options), request.destination)
    if options.dry_run:
        return place.planned(carried.lines())
    require_apart(carried.model.with_adapter(carried.adapter), target)
    if options.checks:
        require_memory("check", carried.model)

    def write(folder: Path) -> Written:
        write_dialect(carried, request, folder)
        facts = facts_of(carried, request.to)
        facts["next"] = command_after(carried, request.destination, target)
        return Written(facts, carried.lines())

    check = None if not options.checks else judged(carried, absolute(target), options)
    return publish(place, carried.key, write, check)


def base_of(adapter: Path) -> str:
    """Return which model ADAPTER, a directory, says it is for: the first that is on this disk.

    Raises:
        BadInputError: there is none.
    """
    named = list(map(on_disk, read_adapter(adapter).named_bases))
    found = next(filter(exists, named), None)
    if found is None:
        what = f"names {named[0]}, which is not here" if named else "names no base"
        raise BadInputError(f"{adapter} {what}; say which model it is for: --base DIR")
    return found


def judged(carried: Carried, target: Path, options: WriteOptions) -> Check:
    """Return the check of CARRIED, to be published as TARGET."""

    def check(folder: Path, _: Facts) -> Checked:
        load = Load(carried.model, carried.adapter, folder, target)
        verdict = check_adapter(load, carried.provenance, options)
        return Checked(verdict, {"figures": dict(verdict.provenance.get("figures", {}))})

    return check


def require_dialect(adapter: Adapter, request: AdapterRequest, source: Path, target: Path) -> None:
    """Answer a wrong direction with the right command.

    Raises:
        BadInputError: the adapter is in the dialect already, or the destination reads the other.
    """
    to, destination = request.to, request.destination
    other = {"mlx": "mlx-to-peft", "peft": "peft-to-mlx"}
    if adapter.framework == FRAMEWORKS[to] and (to == "peft" or adapter.dialect == "mlx"):
        raise BadInputError(
            f"{source} is already in the dialect of {'mlx-lm' if to == 'mlx' else 'PEFT'};"
            f" did you mean {command('convert', other[to], source, target, '--base', request.base)}?"
        )
    if destination is None or DESTINATIONS[destination].dialect == to:
        return
    row, base = DESTINATIONS[destination], request.base
    if adapter.framework == FRAMEWORKS[row.dialect]:
        use = next_command(row, source, base)
        raise BadInputError(f"{destination} reads {source} as it is: {use}")
    words = ("convert", other[to], source, target, "--base", base, "--for", destination)
    raise BadInputError(
        f"{destination} does not read this dialect; did you mean {command(*words)}?"
    )


def carry(adapter: Adapter, request: AdapterRequest, options: WriteOptions) -> Carried:
    """Fit ADAPTER to its base and carry it to the names of the other dialect, in memory; pass 1.

    Raises:
        MismatchError: the adapter is partial or for another base; everything is listed.
    """
    model, other = quantized_view(options.open(request.base)), request.trained_on
    fitted = fitted_to(model, adapter)
    provenance = proven(model, adapter, other, options) if other else provenance_of(model, adapter)
    require_right_base(provenance)
    there = side_of(model, FRAMEWORKS[request.to])
    updates, saved = there.forth(fitted.updates, fitted.saved)
    if tied := sorted(there.tied & updates.keys()):
        raise MismatchError(
            f"adapter {adapter.path} does not fit the base", [f"{name} {TIED}" for name in tied]
        )
    return Carried(fitted, model, there, updates, saved, provenance)


def supported(carried: Carried, destination: str | None) -> Carried:
    """Return CARRIED as DESTINATION can load it.

    Raises:
        MismatchError: it cannot; lists why.
    """
    if destination is None:
        return carried
    row = DESTINATIONS[destination]
    updates = suited(row, carried.updates)
    config = carried.model.config
    found = problems(row, updates, carried.there.kinds, carried.saved, config)
    if found:
        raise MismatchError(
            f"{destination} cannot load this adapter; merge it instead: {merging(carried)}",
            found,
        )
    return replace(carried, updates=updates)


def write_dialect(carried: Carried, request: AdapterRequest, folder: Path) -> None:
    """Write the adapter into FOLDER."""
    updates, kinds, saved = carried.updates, carried.there.kinds, carried.saved
    spec, reader = carried.model.spec, request.destination
    if request.to == "peft":
        found = origin(spec)
        known = found.name if found else spec
        base = known if carried.model.framework == "torch" else None
        write_peft(folder, updates, kinds=kinds, saved=saved, base=base)
        return
    layered = reader is not None and DESTINATIONS[reader].layered
    config = {"model": spec}
    write_adapter(folder, updates, kinds=kinds, saved=saved, config=config, layered=layered)


def facts_of(carried: Carried, to: str) -> dict[str, Any]:
    """Return what ``weighbridge.json`` says of the converted adapter."""
    model, changed = carried.model, sorted(carried.adapter.updates)
    return {
        "weighbridge": __version__,
        "adapter": to,
        "source": {**recorded(str(carried.adapter.path)), "dialect": carried.adapter.dialect},
        "updates": len(carried.updates),
        "saved": sorted(carried.saved),
        "base": {
            "spec": model.spec,
            "framework": model.framework,
            "tensors": fingerprints(model.checkpoint, changed),
            "weights": weight_records(model.checkpoint, changed),
            "quantization": quantization_of(model),
            **{
                key: it
                for key, it in carried.adapter.base.items()
                if key in (GRIDS, ORIGINAL, ADDED_TO)
            },
        },
        "base_provenance": carried.provenance._asdict(),
        "notes": list(carried.adapter.notes),
    }


def command_after(carried: Carried, destination: str | None, target: Path) -> str:
    """Return the command to run next."""
    model, framework = carried.model, carried.there.framework
    if model.framework not in {framework, "torch"}:
        return readable(model, framework)
    if destination is not None:
        rank = max((update.rank for update in carried.updates.values()), default=1)
        return next_command(DESTINATIONS[destination], target, model.spec, rank)
    if framework == "mlx" and str(model.library).startswith("mlx-lm"):
        words = ("--model", model.spec, "--adapter-path", target, "--prompt", "Hello")
        return command(*words, program="mlx_lm.generate")
    if quantization_of(model):  # codes that merges write in MLX's form alone
        return readable(model, "mlx")
    return command("merge", model.spec, target, unused(model.spec, "-merged"))


def readable(model: Model, framework: str) -> str:
    """Return the command that makes of MODEL a base that programs of FRAMEWORK read."""
    if model.framework == "mlx" and quantization_of(model):
        return dequantizing(model.spec)
    verb, target = f"{model.framework}-to-{framework}", unused(model.spec, f"-{framework}")
    return command("convert", verb, model.spec, target)


def merging(carried: Carried) -> str:
    """Return the command that merges the adapter as it was given."""
    model, adapter = carried.model, carried.adapter
    return command("merge", model.spec, str(adapter.path), unused(model.spec, "-merged"))
