"""Train and preflight, from a configuration to a run folder."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..converters.checkpoints import require_target
from ..converters.common.repositories import recorded
from ..converters.common.system import writing
from ..converters.models import MANIFEST
from ..converters.models import open as open_model
from ..converters.results.records import write_record
from ..converters.sidefiles import copy_side_files
from .manifest import write_manifest
from .needs import require_memory

if TYPE_CHECKING:
    from ..trainers.config import TrainConfig
    from ..trainers.preflight import Preflight
    from ..trainers.runs.events import Progress
    from ..trainers.runs.loop import TrainResult

CONFIG, WEIGHTS = "config.yaml", "model.safetensors"


def train(
    target: Path,
    backend: str,
    config_path: Path | str | None,
    overrides: Sequence[str] = (),
    *,
    resume: bool = False,
    progress: Progress | None = None,
) -> TrainResult:
    """Train as the configuration says and leave an adapter, or an ordinary directory, in TARGET.

    Args:
        target: the run's folder.
        backend: ``mlx`` or ``torch``.
        config_path: YAML or TOML file, or the name of a recipe.
        overrides: ``key.subkey=value`` each.
        resume: go on where the run in TARGET stopped; the configuration is the run's own.
        progress: told every event; plain lines on stderr if not given.
    """
    from ..trainers.config import load_config
    from ..trainers.runs.events import Lines
    from ..trainers.runs.loop import train as run

    if not resume:
        require_target(target, "run")
    told = config_path is not None or bool(overrides)
    config = load_config(config_path, overrides) if told else None
    saved = target / CONFIG
    if begun := config or (load_config(saved) if resume and saved.is_file() else None):
        require_memory_of(begun)
    result = run(
        config, target, backend=backend, progress=progress or Lines(sys.stderr), resume=resume
    )
    if (target / WEIGHTS).is_file():
        complete(config or load_config(target / CONFIG), target)
    with writing(target):
        write_record(target, "run")
    return result


def require_memory_of(config: TrainConfig) -> None:
    """Refuse a run of CONFIG that can never fit in memory."""
    model = open_model(config.model, trust_code=config.trust_code)
    require_memory("train adapters on" if config.adapter else "train", model)


def complete(config: TrainConfig, target: Path) -> None:
    """Put beside whole trained weights what makes TARGET a directory that every loader opens."""
    source = open_model(config.model, trust_code=config.trust_code)
    if source.path is None or not source.path.is_dir():
        return
    copy_side_files(source.path, target)
    if source.map_text or not (target / MANIFEST).exists():
        facts: dict[str, Any] = {
            "weighbridge": __version__,
            "framework": source.framework,
            "map": source.map_text,
        }
        facts |= {"sizes": dict(source.sizes), "witness": source.witness}
        write_manifest(target, facts | {"source": recorded(source.spec), "verdict": "UNVERIFIED"})


def preflight(config_path: Path | str | None, overrides: Sequence[str] = ()) -> Preflight:
    """Compare loss and every gradient of the first batch, MLX against PyTorch."""
    from ..trainers.config import load_config
    from ..trainers.runs.loop import preflight as check

    config = load_config(config_path, overrides)
    require_memory_of(config)
    return check(config)
