"""Weigh a converted adapter: live against live, each by the loader of its own dialect."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..converters.adapters import Adapter, fit, read_adapter
from ..converters.models import Model
from ..converters.policy import Policy
from ..converters.runtimes import Runner, load
from ..errors import MismatchError, UnsupportedError, WeighbridgeError
from .bases import Kin, dense_view
from .opening import fitted_to
from .options import Options, open_with
from .seen import seen_from
from .sides import carried, side_of

if TYPE_CHECKING:
    from ..parity.probes import Probe
    from ..parity.verdict import Stage, Verdict

BAR = (
    1e-6  # relative error of live outputs in float32, where the frameworks themselves agree as well
)
NOISE = 4.0  # times what the two frameworks differ by on the bare base
NEEDED = 100.0  # an adapter must move the outputs so many times as far as its conversion's error


class Load(NamedTuple):
    """What is weighed.

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
    witness: str | None


def weigh_adapter(it: Load, kin: Kin, options: Options) -> Verdict:
    """Weigh the converted adapter of IT against its source."""
    from ..parity.verdict import Verdict, decide

    stages = [kinship_stage(kin), pairing_stage(it)]
    figures: dict[str, Any] = {}
    if stages[-1].status == "pass":
        stages += live_stages(it, options, figures)
        if kin.trained_on:
            figures |= change_of_base(it.model, it.adapter, kin.trained_on, options)
    status = decide(stages, "mlx")
    level = "quick" if options.check == "quick" else "full"
    return Verdict(status, tuple(stages), provenance=said(it, level, figures))


def said(it: Load, level: str, figures: dict[str, Any]) -> dict[str, Any]:
    """Return what was weighed, and how."""
    return {
        "reference": {"spec": str(it.adapter.path)},
        "candidate": {"spec": str(it.target)},
        "level": level,
        "figures": figures,
    }


def kinship_stage(kin: Kin) -> Stage:
    """Return the stage that says whether the base is the right one."""
    from ..parity.verdict import Stage

    known = {"same": "pass", "other recipe": "pass", "unknown": "skipped"}
    return Stage("kinship", known.get(kin.status, "fail"), kin.said)


def pairing_stage(it: Load) -> Stage:
    """Read the converted adapter back as a stranger would: every pair, every module, nothing over."""
    from ..parity.verdict import Stage

    try:
        found = read_adapter(it.folder)
        side = side_of(it.model, found.framework)
        fit(found, side.headers, side.kinds, tied=side.tied)
    except MismatchError as error:
        return Stage("pairs", "fail", str(error))
    count, wanted = len(found.updates), len(it.adapter.updates)
    made = "" if count == wanted else f" (of {wanted} weights of the base)"
    said = f"{count} updates{made} read back, every pair complete, every module found in the base"
    whole = f"; {len(found.saved)} whole tensors" if found.saved else ""
    return Stage("pairs", "pass", f"{said}{whole}")


def live_stages(it: Load, options: Options, figures: dict[str, Any]) -> list[Stage]:
    """Run source and target live and compare; FIGURES gets the numbers."""
    from ..parity.verdict import Stage

    written = read_adapter(it.folder)
    try:
        source = run_of(it.model, it.adapter.framework, it.adapter, it.adapter.path, options)
        target = run_of(it.model, written.framework, None, it.folder, options)
    except UnsupportedError as error:
        return [Stage("live", "unverified", f"cannot run both sides here: {error}")]
    except MismatchError as error:
        return [Stage("layout", "fail", str(error))]
    layout = (
        Stage("layout", "pass", target.witness)
        if target.witness
        else Stage("layout", "unverified", f"no loader of {written.framework} adapters here")
    )
    figures |= measured(it, source.runner, target.runner, options)
    return [layout, live_stage(figures)]


def live_stage(figures: dict[str, Any]) -> Stage:
    """Judge the FIGURES of a comparison."""
    from ..parity.verdict import Stage

    error, floor, effect = (figures[key] for key in ("conversion", "frameworks", "effect"))
    limit = max(BAR, NOISE * floor)
    said = (
        f"live against live: relative error {error:.1e} (limit {limit:.1e}; the frameworks differ by"
        f" {floor:.1e} on the bare base); the adapter moves the outputs by {effect:.1e}"
    )
    status = "pass" if error <= limit else "fail"
    if status == "pass" and effect < NEEDED * max(error, floor):
        return Stage("live", "unverified", f"{said}, too little to show a fault", figures)
    return Stage("live", status, said, figures)


def measured(it: Load, source: Runner, target: Runner, options: Options) -> dict[str, float]:
    """Return the figures of SOURCE against TARGET, and of the bare base in both frameworks."""
    from ..converters.runtimes.live import live_difference

    probes = probes_of(it.model, options)
    bare = {
        side: load(seen_from(it.model, side, options), side, Policy()) for side in ("torch", "mlx")
    }
    own = bare[source.runtime if source.runtime in bare else it.model.framework]
    return {
        "conversion": live_difference(source, target, probes),
        "frameworks": live_difference(bare["torch"], bare["mlx"], probes),
        "effect": live_difference(own, source, probes),
    }


def probes_of(model: Model, options: Options) -> list[Probe]:
    """Return the inputs that both sides run on."""
    from ..parity.probes import make_probes, probes_from_file

    if options.inputs:
        return probes_from_file(options.inputs, model.signature)
    folder = model.path if model.path and model.path.is_dir() else None
    return make_probes(model.signature, tokenizer=folder, quick=options.check == "quick")


def run_of(
    model: Model, framework: str, adapter: Adapter | None, folder: Path, options: Options
) -> Run:
    """Return MODEL running in FRAMEWORK with the adapter of FOLDER live, by its own loader if there.

    ADAPTER, fitted to MODEL, is what our own runtimes run where no loader is installed.
    """
    seen = seen_from(model, framework, options)
    if framework == "torch":
        from ..converters.runtimes.peft import peft_runner

        try:
            return Run(peft_runner(seen, folder), "PEFT's own loader, every tensor taken")
        except ModuleNotFoundError:
            return Run(own_runner(model, "torch", adapter, folder, options), None)
    from ..converters.runtimes.mlx_adapters import mlx_lm_runner

    try:
        return Run(
            mlx_lm_runner(seen, folder), "mlx-lm's own layers and loader, every tensor taken"
        )
    except (ModuleNotFoundError, UnsupportedError):
        return Run(own_runner(model, "mlx", adapter, folder, options), None)


def own_runner(
    model: Model, framework: str, adapter: Adapter | None, folder: Path, options: Options
) -> Runner:
    """Return MODEL in FRAMEWORK with its adapter live, by our own runtime."""
    adapter = adapter or fitted_to(model, read_adapter(folder))
    there = seen_from(replace(model, adapter=None), framework, options)
    side = side_of(model, framework) if there.framework != model.framework else None
    if side is not None:
        leg = side.legs[0]
        updates, saved = carried((leg.plan,), adapter.updates, adapter.saved)
        adapter = replace(adapter, updates=updates, saved=saved)
    return load(replace(there, adapter=adapter), framework, Policy())


def change_of_base(
    model: Model, adapter: Adapter, trained_on: str, options: Options
) -> dict[str, float]:
    """Return how far the live ADAPTER's outputs on TRAINED_ON are from those on MODEL."""
    from ..converters.runtimes.live import live_difference

    other = dense_view(open_with(trained_on, options))
    try:
        there = run_of(other, adapter.framework, None, adapter.path, options)
        here = run_of(model, adapter.framework, adapter, adapter.path, options)
        probes = probes_of(model, options)
        return {"change of base": live_difference(here.runner, there.runner, probes)}
    except WeighbridgeError:
        return {}
