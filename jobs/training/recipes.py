"""Train and preflight, from a recipe to a run folder."""

from __future__ import annotations

import difflib
import itertools
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from ... import __version__
from ...converters.checkpoints import open_checkpoint
from ...converters.common.hints import command
from ...converters.common.repositories import recorded
from ...converters.common.system import writing
from ...converters.models import MANIFEST
from ...converters.models.config_fields import FACTORY, FILE, OPTIONS
from ...converters.models.factories import looks_like_factory
from ...converters.planning.config import rewrite_config
from ...converters.planning.conversion import conversion_of
from ...converters.planning.manifest import write_manifest
from ...converters.planning.memory import require_memory
from ...converters.planning.opening import open as open_model
from ...converters.results.records import write_record
from ...converters.sidefiles import copy_side_files
from ...errors import BadInputError
from ..checking import layout_check_of

if TYPE_CHECKING:
    from ...trainers.config import TrainConfig
    from ...trainers.preflight import Preflight
    from ...trainers.runs.events import Progress
    from ...trainers.runs.loop import TrainResult

CONFIG, WEIGHTS = "config.yaml", "model.safetensors"
RUN = "run"  # the folder where none is named
SETTINGS = (".yaml", ".yml", ".toml")


class Watching(TypedDict, total=False):
    """How a run is watched.

    Attributes:
        progress: called with every event; plain lines on stderr if not given.
        profile: leave a report on memory and its picture in the run's folder.
    """

    progress: Progress | None
    profile: bool


def train(
    target: Path | None,
    backend: str | None,
    recipe: Path | str | None,
    overrides: Sequence[str] = (),
    *,
    resume: bool = False,
    **watching: Unpack[Watching],
) -> TrainResult:
    """Train as the configuration says and leave an adapter, or an ordinary directory, in TARGET.

    Args:
        target: the run's folder; ``run`` or the next free name like it where none is given, and
            with RESUME the last of them.
        backend: ``mlx`` or ``torch``; ``None`` for that of a run that goes on, and MLX for another.
        recipe: YAML or TOML file, or the name of a recipe; see ``load_config``.
        overrides: ``key.subkey=value`` each.
        resume: go on where the run in TARGET stopped; the configuration is the run's own.
        watching: who is told of it, and whether memory is measured.
    """
    from ...trainers.ranks import ranks_of
    from ...trainers.runs.loop import train as run

    backend = chosen_backend(backend, target, resume=resume)
    ranks = ranks_of(backend)
    with ranks.together():
        begin = partial(_begun, target, recipe, overrides, resume=resume)
        config, begun, target = ranks.first(begin)
        watch = nullcontext(None) if ranks.rank else watched(target, begun, **watching)
        with watch as progress:
            watchers: Any = {"progress": progress, "complete": partial(complete, begun)}
            result = run(config, target, backend=backend, resume=resume, **watchers)
        if not ranks.rank:
            result = noted(result, begun)
        ranks.write(partial(record, target))
    return result


def noted(result: TrainResult, config: TrainConfig) -> TrainResult:
    """Return RESULT, and leave it so in its folder, with a note why the check of its next command cannot decide."""
    from ...trainers.runs.loop import RESULT

    if "mlx-to-torch" not in result.next or config.trust_code:
        return result
    decides, why = layout_check_of(open_model(config.model if config.adapter else str(result.out)))
    if decides:
        return result
    note = f"its check will say UNVERIFIED: {why}; --accept unverified lets that pass"
    result = replace(result, note=note)
    with writing(result.out):
        text = json.dumps(result.document(), indent=1) + "\n"
        (result.out / RESULT).write_text(text, encoding="utf-8")
    return result


def _begun(
    target: Path | None, recipe: Path | str | None, overrides: Sequence[str], *, resume: bool
) -> tuple[TrainConfig | None, TrainConfig, Path]:
    """Return the configuration that is asked for, that of the run, and its folder."""
    from ...trainers.config import load_config
    from ...trainers.runs.loop import admitted

    if recipe is None and target and not resume:
        require_folder_name(target)
    target = target or default_run(resume=resume)
    saved = target / CONFIG
    base = saved if resume and recipe is None and saved.is_file() else recipe
    config = load_config(base, overrides) if recipe or overrides or not resume else None
    begun = admitted(config, target, resume=resume)
    require_memory_of(begun)
    return config, begun, target


def chosen_backend(backend: str | None, target: Path | None, *, resume: bool) -> str:
    """Return BACKEND; where none is named that of the run in TARGET to go on with, or MLX."""
    from ...trainers.runs.loop import BACKENDS, backend_of

    if backend is not None:
        return backend
    return backend_of(target or default_run(resume=True)) if resume else BACKENDS[0]


def record(target: Path) -> None:
    """Write down which files the run in TARGET has left."""
    with writing(target):
        write_record(target, "run")


@contextmanager
def watched(
    target: Path,
    config: TrainConfig | None,
    progress: Progress | None = None,
    *,
    profile: bool = False,
) -> Iterator[Progress]:
    """Yield what is called with the events of the run in TARGET; with PROFILE its memory is recorded."""
    from ...trainers.memory.recording import recorded
    from ...trainers.runs.events import Lines

    watch = progress or Lines(sys.stderr)
    size = config.largest_batch if config else None
    with recorded(watch, target, size) if profile else nullcontext(watch) as listener:
        yield listener


def default_run(*, resume: bool) -> Path:
    """Return the first free one of ``run``, ``run-2``, ... here, or with RESUME the last one taken.

    Raises:
        BadInputError: there is none to resume.
    """
    last = None
    for number in itertools.count(1):
        path = Path(RUN if number == 1 else f"{RUN}-{number}")
        if not os.path.lexists(path):
            break
        last = path
    if resume and last is None:
        raise BadInputError(
            f"there is no folder {RUN} here to resume; name the one to go on with before --resume"
        )
    return last if resume and last else path


def require_folder_name(target: Path) -> None:
    """Refuse a TARGET that was meant as a recipe or a setting: nobody names one as the run's folder.

    Raises:
        BadInputError: it looks like one; the message has the command that was meant.
    """
    from ...trainers.config import recipes

    name, known = str(target), recipes()
    alike = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    if "=" in name:
        raise BadInputError(f"{name} is a setting, not a folder: weighbridge train --set {name}")
    if target.suffix in SETTINGS or (alike and not name.startswith(f"{alike[0]}-")):
        meant = command("train", "--recipe", alike[0] if alike else name)
        raise BadInputError(f"{name} looks like a recipe, not like the folder of a run: {meant}")


def require_memory_of(config: TrainConfig) -> None:
    """Refuse a run of CONFIG that can never fit in memory."""
    from ...trainers.bundled import provide
    from ...trainers.configuration.opening import opened

    provide([config.model])
    model = opened(config)
    require_memory("train adapters on" if config.adapter else "train", model)


def complete(config: TrainConfig, target: Path) -> None:
    """Put beside whole trained weights in TARGET what makes it a directory that every loader opens."""
    from ...trainers.configuration.opening import opened

    if not (target / WEIGHTS).is_file():
        return
    if looks_like_factory(config.model):
        built = {FACTORY: config.model, OPTIONS: config.model_options}
        (target / FILE).write_text(json.dumps(built, indent=1) + "\n", encoding="utf-8")
        return
    source = opened(config)
    if source.path is None or not source.path.is_dir():
        return
    copy_side_files(source.path, target)
    framework = open_checkpoint(target / WEIGHTS).metadata.get("format", source.framework)
    if source.map_text or not (target / MANIFEST).exists():
        facts: dict[str, Any] = {
            "weighbridge": __version__,
            "framework": framework,
            "config": rewrite_config(target, conversion_of(source, framework).translation),
            "map": source.map_text,
        }
        facts |= {"sizes": dict(source.sizes), "layout_check": source.layout_check}
        write_manifest(target, facts | {"source": recorded(source.spec), "verdict": "UNVERIFIED"})


def preflight(recipe: Path | str | None, overrides: Sequence[str] = ()) -> Preflight:
    """Compare loss and every gradient of the first batch, MLX against PyTorch."""
    from ...trainers.config import load_config
    from ...trainers.launchers import require_alone
    from ...trainers.runs.loop import preflight as check

    require_alone("preflight")
    config = load_config(recipe, overrides)
    require_memory_of(config)
    return check(config)
