"""Classes of mlx-lm and mlx-vlm that are mended on the way to MLX, and the offer to do so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from ..converters.common.hints import command
from ..converters.libraries.repairs.catalogue import needs, unloaded
from ..converters.libraries.repairs.writing import MODEL_FILES
from ..converters.models import Model
from ..converters.models.model_files import repairable, repaired_config
from ..errors import BadInputError, UnsupportedError
from .options import Options
from .pipeline import Checked, Facts

# mlx-embeddings' loader is told which class to take, by its caller alone.
UNREAD: Final = (
    "mlx-embeddings reads no model_file: `weighbridge inspect` on the result prints the lines that load it"
    " mended; a plain mlx_embeddings.load takes the class as it is"
)


def mended(model: Model, options: Options) -> Model:
    """Return MODEL as it is to be read by a class that is mended, where OPTIONS ask for it.

    Raises:
        BadInputError: no repair is known for it.
    """
    if not options.repair:
        return model
    if model.framework != "torch":
        raise BadInputError("a repair is written on the way from PyTorch to MLX alone")
    library = reading(model)
    if library not in MODEL_FILES:
        raise BadInputError(
            f"--repair mends classes of {', '.join(MODEL_FILES)}, and {model.spec} goes to {library},"
            " which runs no model.py"
        )
    return replace(model, config=repaired_config(model.path, model.config, library))


def unread(model: Model) -> list[str]:
    """Return what is to be said of MODEL where its library does not look for the file that mends its class."""
    return [UNREAD] if model.config.get("model_file") == MODEL_FILES["mlx-embeddings"] else []


def reading(model: Model) -> str:
    """Return the library whose class reads MODEL in MLX."""
    return model.library.library if model.library else model.reader or "mlx-lm"


def offering(
    check: Callable[[Path, Facts], Checked], model: Model, target: Path
) -> Callable[[Path, Facts], Checked]:
    """Return CHECK with the command that mends mlx-lm's class, where that is at fault and it is known how."""
    library = reading(model)

    def both(folder: Path, facts: Facts) -> Checked:
        found = check(folder, facts)
        verdict = found.verdict
        about = verdict.stage("configuration")
        seeing = library == "mlx-vlm"  # what is wrong with its pictures no probe shows
        at_fault = seeing or verdict.upstream or (about is not None and about.figures.get("class"))
        asked = at_fault and not verdict.passed and model.framework == "torch"
        if not asked or not repairable(model.config, library):
            return found
        return found._replace(facts={**found.facts, "repair": repairing(model, target)})

    return both


def repairing(model: Model, target: Path) -> str:
    """Return the command that writes MODEL to TARGET with a class that is mended."""
    return command("convert", "torch-to-mlx", model.spec, target, "--repair")


@contextmanager
def naming_repairs(model: Model, target: Path) -> Iterator[None]:
    """Let a refusal of MODEL name the command that writes a class which does without what is refused."""
    try:
        yield
    except UnsupportedError as error:
        about = reading(model), str(model.config.get("model_type"))
        known = needs(*about) or unloaded(*about)
        if model.framework != "torch" or not known or "model_file" in model.config:
            raise
        line = repairing(model, target)
        raise UnsupportedError(f"{error}; a class that is mended is written by: {line}") from error
