"""Classes of mlx-lm that are mended on the way to MLX, and the offer to do so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ..converters.common.hints import command
from ..converters.models import Model
from ..converters.models.model_files import repairable, repaired_config
from ..converters.models.towers import parts_of
from ..errors import BadInputError
from .options import Options
from .pipeline import Checked, Facts


def mended(model: Model, options: Options) -> Model:
    """Return MODEL as it is to be read by a class that is mended, where OPTIONS ask for it.

    Raises:
        BadInputError: no repair is known for it.
    """
    if not options.repair:
        return model
    if model.framework != "torch":
        raise BadInputError("a repair is written on the way from PyTorch to MLX alone")
    if not by_mlx_lm(model):
        towers = any(parts_of(model.config))
        why = "which has its towers; add --library mlx-lm to leave them out"
        raise BadInputError(
            f"--repair mends classes of mlx-lm, and {model.spec} goes to {model.reader},"
            f" {why if towers else 'as --library says; leave that out'}"
        )
    return replace(model, config=repaired_config(model.path, model.config))


def by_mlx_lm(model: Model) -> bool:
    """Say whether no other library than mlx-lm is to read MODEL."""
    return model.reader in (None, "mlx-lm")


def offering(
    check: Callable[[Path, Facts], Checked], model: Model, target: Path
) -> Callable[[Path, Facts], Checked]:
    """Return CHECK with the command that mends mlx-lm's class, where that is at fault and it is known how."""

    def both(folder: Path, facts: Facts) -> Checked:
        found = check(folder, facts)
        verdict = found.verdict
        about = verdict.stage("configuration")
        at_fault = verdict.upstream or (about is not None and about.figures.get("class"))
        asked = at_fault and not verdict.passed and model.framework == "torch"
        if not asked or not by_mlx_lm(model) or not repairable(model.config):
            return found
        line = command("convert", "torch-to-mlx", model.spec, target, "--repair")
        return found._replace(facts={**found.facts, "repair": line})

    return both
