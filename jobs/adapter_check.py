"""Check a converted adapter: live against live, each by the loader of its own dialect."""

from __future__ import annotations

import contextlib
import math
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..converters.adapters import Adapter, read_adapter
from ..converters.adapters.config import CONFIG
from ..converters.adapters.differences import disagreements, other_arrays
from ..converters.common.memory import pass_on_shortage
from ..converters.common.policy import Policy
from ..converters.common.steps import step
from ..converters.models import Model
from ..converters.models.perturbed import perturbed
from ..converters.models.towers import tower_names
from ..converters.planning.adapter_names import carried, side_of
from ..converters.planning.opening import fitted_to
from ..converters.planning.view import converted_view, dense_view
from ..converters.runtimes import Runner, load
from ..converters.runtimes.live import live_difference
from ..errors import MismatchError, UnsupportedError, WeighbridgeError
from ..parity.check.verdict import Stage, Verdict, decide
from ..parity.probes.pictures import fitted
from .options import CheckOptions
from .provenance.base import Provenance, provenance_stage

if TYPE_CHECKING:
    from ..parity.probes.probes import Probe

BAR = 1e-6  # relative error of live outputs in float32, where the frameworks agree as well
NOISE = 4.0  # times what the two frameworks differ by on the bare base
NEEDED = 100.0  # an adapter must move the outputs so many times as far as its conversion's error
SHOWN = 8  # updates that differ, in one line
LOADERS = {
    "peft": ("peft", "peft_runner", "PEFT's own loader"),
    "mlx": ("native.mlx_lm", "mlx_lm_runner", "mlx-lm's own loader"),
}


class Load(NamedTuple):
    """What is compared.

    Attributes:
        model: the base, dense.
        adapter: the source, its updates under the base's own names.
        folder: where the converted adapter lies now.
        target: where it will lie.
    """

    model: Model
    adapter: Adapter
    folder: Path
    target: Path


class Run(NamedTuple):
    """A live adapter's runner, and who loaded it."""

    runner: Runner
    layout_check: str | None


def check_adapter(it: Load, provenance: Provenance, options: CheckOptions) -> Verdict:
    """Compare the converted adapter of IT with its source."""
    stages = [provenance_stage(provenance), pairing_stage(it)]
    figures: dict[str, Any] = {}
    if stages[-1].status == "pass":
        stages += live_stages(it, options, figures)
        if provenance.trained_on:
            figures |= change_of_base(it.model, it.adapter, provenance.trained_on, options)
    status = decide(stages, "mlx")
    level = "quick" if options.quick else "full"
    return Verdict(status, tuple(stages), provenance=provenance_of(it, level, figures))


def provenance_of(it: Load, level: str, figures: dict[str, Any]) -> dict[str, Any]:
    """Return what was compared, and how."""
    return {
        "reference": {"spec": str(it.adapter.path)},
        "candidate": {"spec": str(it.target)},
        "level": level,
        "figures": figures,
    }


def pairing_stage(it: Load) -> Stage:
    """Read the converted adapter as another program would: every pair, every module, nothing over."""
    try:
        found = read_adapter(it.folder)
        back = fitted_to(it.model, found)
    except MismatchError as error:
        return Stage("pairs", "fail", str(error))
    problems = disagreements(it.adapter.updates, back.updates)
    if problems := [*problems, *other_arrays(it.adapter.saved, back.saved)]:
        return Stage("pairs", "fail", "; ".join(problems[:SHOWN]))
    count, wanted = len(found.updates), len(it.adapter.updates)
    made = "" if count == wanted else f" (of {wanted} weights of the base)"
    detail = (
        f"{count} updates{made} read back: every pair complete, each does what the source's does"
    )
    whole = f"; {len(found.saved)} modules_to_save tensors" if found.saved else ""
    return Stage("pairs", "pass", f"{detail}{whole}")


def live_stages(it: Load, options: CheckOptions, figures: dict[str, Any]) -> list[Stage]:
    """Run source and target live and compare; FIGURES gets the numbers."""
    step("checking: both adapters live")
    written = read_adapter(it.folder)
    try:
        source = run_of(it.model, it.adapter, options)
        target = run_of(it.model, written, options)
        figures |= measured(it, source.runner, target.runner, options)
    except MismatchError as error:
        return [Stage("layout", "fail", str(error))]
    except WeighbridgeError as error:
        return [Stage("live", "unverified", f"cannot run both sides here: {error}")]
    return [layout_stage(source, target, it.adapter, written), live_stage(figures)]


def layout_stage(source: Run, target: Run, read: Adapter, written: Adapter) -> Stage:
    """Say whether both adapters were loaded by the loaders of their own dialects."""
    sides = ((source, read), (target, written))
    missing = [f"{adapter.dialect} adapters" for run, adapter in sides if run.layout_check is None]
    if missing:
        detail = f"no loader of {' and '.join(missing)} for this model is installed"
        return Stage("layout", "unverified", detail)
    return Stage("layout", "pass", f"{source.layout_check}; {target.layout_check}")


def live_stage(figures: dict[str, Any]) -> Stage:
    """Judge the FIGURES of a comparison."""
    error, floor, effect = (figures[key] for key in ("conversion", "frameworks", "effect"))
    limit = max(BAR, NOISE * floor * figures.get("sensitivity", 1.0))
    detail = (
        f"live against live: relative error {error:.1e} (limit {limit:.1e}; the frameworks differ by"
        f" {floor:.1e} on the bare base); the adapter moves the outputs by {effect:.1e}"
    )
    if not (math.isfinite(floor) and math.isfinite(effect)):
        return Stage(
            "live", "unverified", f"{detail}: outputs that are not finite show nothing", figures
        )
    if error > limit:
        return Stage("live", "fail", detail, figures)
    if unseen := figures.get("unseen"):
        return Stage("live", "unverified", f"{detail}; {unseen}", figures)
    if not effect > NEEDED * max(error, floor):
        return Stage("live", "unverified", f"{detail}, too little to show a fault", figures)
    return Stage("live", "pass", detail, figures)


def measured(it: Load, source: Runner, target: Runner, options: CheckOptions) -> dict[str, Any]:
    """Return the figures of SOURCE against TARGET, and of the bare base in both frameworks.

    An adapter can make a model more sensitive to rounding than the bare base is. How much, is
    measured where the difference is too large for the bare base: on the source's side alone, by
    moving every weight by as much as float32 rounds.
    """
    bare = {
        side: load(converted_view(it.model, side, options.original), side, Policy())
        for side in ("torch", "mlx")
    }
    own = bare[it.adapter.framework]
    probes = probes_of(it.model, options)
    updated = len(tower_names(it.adapter.updates))
    seen, unseen = pictures_for(it.model, bare["torch"], options) if updated else ([], "")
    probes += seen
    figures: dict[str, Any] = {
        "conversion": distance(source, target, probes),
        "frameworks": distance(bare["torch"], bare["mlx"], probes),
        "effect": distance(own, source, probes),
    }
    if unseen:
        figures["unseen"] = f"{updated} updates of towers were not run: {unseen}"
    if max(BAR, NOISE * figures["frameworks"]) < figures["conversion"] < math.inf:
        moved = perturbed(it.model)
        there = load(
            converted_view(moved, it.adapter.framework, options.original),
            it.adapter.framework,
            Policy(),
        )
        alone = distance(own, there, probes)
        live = distance(source, run_of(moved, it.adapter, options).runner, probes)
        figures["sensitivity"] = max(1.0, live / alone) if alone else 1.0
    return figures


def distance(one: Runner, other: Runner, probes: list[Probe]) -> float:
    """Return how far the outputs of two live models are apart.

    Raises:
        UnsupportedError: a library's own class fails on the inputs.
    """
    try:
        pairs = ((fitted(one, probe), fitted(other, probe), [probe]) for probe in probes)
        return max((live_difference(*it) for it in pairs), default=math.inf)
    except Exception as error:
        pass_on_shortage(error)
        raise UnsupportedError(
            f"{one.runtime} or {other.runtime} fails on these inputs: {type(error).__name__}: {error}"
        ) from error


def pictures_for(model: Model, runner: Runner, options: CheckOptions) -> tuple[list[Probe], str]:
    """Return a text with a picture that RUNNER, MODEL in PyTorch, takes; or none, and why."""
    from ..parity.check.pictures import probe_for

    if options.inputs:
        return [], ""
    module: Any = runner
    try:
        return [probe_for(model, module.module, quick=options.quick)], ""
    except UnsupportedError as error:
        return [], str(error)


def probes_of(model: Model, options: CheckOptions) -> list[Probe]:
    """Return the inputs that both sides run on."""
    from ..parity.probes.given import probes_from_file
    from ..parity.probes.probes import make_probes

    if options.inputs:
        return probes_from_file(options.inputs, model.signature)
    return make_probes(model.signature, tokenizer=model.folder, quick=options.quick)


def run_of(model: Model, adapter: Adapter, options: CheckOptions) -> Run:
    """Return MODEL running with ADAPTER live, by its dialect's own loader if that is installed.

    Args:
        model: the base, dense, in any framework.
        adapter: as read, or fitted to MODEL.
        options: how to read a model.
    """
    if adapter.dialect in LOADERS:
        module, run, loader = LOADERS[adapter.dialect]
        try:
            seen = converted_view(model, adapter.framework, options.original)
            with own_folder(adapter) as folder:
                runner = getattr(import_module(f"..converters.runtimes.{module}", __package__), run)
                return Run(runner(seen, folder), f"{loader} took every tensor")
        except (ModuleNotFoundError, UnsupportedError):
            pass  # nobody here reads it besides us
    return Run(own_runner(model, adapter, options), None)


@contextlib.contextmanager
def own_folder(adapter: Adapter) -> Iterator[Path]:
    """Give a folder in which ADAPTER's file has the name that loaders want.

    A user may name one of several checkpoints of a run.
    """
    file = adapter.file
    usual = {"peft": "adapter_model", "mlx": "adapters"}[adapter.dialect]
    if file is None or file.stem == usual:
        yield adapter.path
        return
    with tempfile.TemporaryDirectory(prefix="weighbridge-") as folder:
        shutil.copyfile(adapter.path / CONFIG, Path(folder) / CONFIG)
        shutil.copyfile(file, Path(folder) / f"{usual}{file.suffix}")
        yield Path(folder)


def own_runner(model: Model, adapter: Adapter, options: CheckOptions) -> Runner:
    """Return MODEL with ADAPTER live, in the framework of its dialect, by our own runtime."""
    fitted = adapter if adapter.updates.keys() <= model.checkpoint.headers.keys() else None
    fitted = fitted or fitted_to(model, adapter)
    there = converted_view(model, adapter.framework, options.original)
    if there.framework != model.framework:
        leg = side_of(model, adapter.framework).legs[0]
        updates, saved = carried((leg.plan,), fitted.updates, fitted.saved)
        fitted = replace(fitted, updates=updates, saved=saved)
    return load(replace(there, adapter=fitted), adapter.framework, Policy())


def change_of_base(
    model: Model, adapter: Adapter, trained_on: str, options: CheckOptions
) -> dict[str, float]:
    """Return how far the live ADAPTER's outputs on TRAINED_ON are from those on MODEL."""
    try:
        other = run_of(dense_view(options.open(trained_on)), adapter, options)
        here = run_of(model, adapter, options)
        return {"change of base": distance(here.runner, other.runner, probes_of(model, options))}
    except WeighbridgeError:
        return {}
