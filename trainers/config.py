"""The configuration of a training run: strict, complete, and saved in the run as it was used."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, PositiveFloat, PositiveInt, ValidationError

from ..converters.documents import parse_yaml, read_settings
from ..errors import BadInputError, MismatchError
from .bundled import PREFIX, located, provide
from .configuration.data import Data, PrefetchSection, Rows
from .configuration.loop import DynamicBatch, EarlyStopping
from .configuration.objectives import Objective
from .configuration.problems import problems_of
from .configuration.section import Section
from .configuration.updates import AdamWSection, AdapterSection, Optimizer, ScheduleSection
from .data.rows.guessing import FOLDER, inside, section_of

ORIGIN = "live:"  # begins the name of what is in memory, in the configuration that a run keeps
DEFAULT = "docstrings"  # the recipe where none is named: complete, small, needs no network
CHOSEN_BY = {
    "data": "kind",
    "objective": "name",
    "optimizer": "name",
}  # what a name alone stands for
LENGTHS = {
    "steps": "epochs",
    "epochs": "steps",
}  # one says how long a run is, in place of the other
EITHER = {
    ("steps", "epochs"): "how long the run is",
    ("batch_tokens", "dynamic_batch"): "how large batches are",
}
SPLITS = ("train", "validation", "test")
WHOLE = ("model", "data.kind", "objective.name")  # what makes a run another one altogether
DEEPEST = 8  # sections that --set makes; what is below them is no key of ours


class TrainConfig(Section):
    """A whole training run.

    Attributes:
        model: what ``weighbridge.open`` takes: a directory or ``module:factory``.
        trust_code: the module that may be imported for it.
        model_options: arguments of the factory, where the model is ``module:factory``.
        tokenizer: the directory of the tokenizer, where it is not the model's own.
        data: where the examples are; ``bundled:`` files are made when first needed. A name alone is its kind, a
            path alone a file whose kind its columns tell.
        objective: what is minimised. A name alone stands for it with its defaults.
        metric: the figure that chooses the best checkpoint: one that the objective measures, or
            ``module:function`` of a user's (see ``trainers.evaluation``); ``None`` is the objective's own.
        higher_is_better: which way it improves; ``None`` is as the objective says, for a function true.
        adapter: low-rank adapters; ``None`` trains every parameter.
        train: parameters that are trained beside the adapters, or alone where there are none, as module
            path endings or patterns; the objective's own are named after ``objective.``.
        freeze: parameters that stay as they are, likewise.
        mode: ``train`` runs dropout and batch statistics, each part of a module that is given in the
            mode that it is in; ``eval`` has all of it in eval mode.
        dtype: what the model computes in, on parameters and an optimizer in float32. In ``float16`` the
            loss is scaled, by what the gradients allow.
        ema: evaluate, and write, averages of the parameters that each update moves by 1 - EMA.
        checkpoint: modules, as module path endings or patterns, whose values are computed again for the
            gradient instead of being kept: more time for less memory.
        optimizer: what makes an update of a gradient. A name alone stands for it with its defaults.
        steps: updates.
        epochs: how often every example is seen, in place of ``steps``.
        early_stopping: when to stop before that; ``None`` never does.
        batch_size: examples in a micro-batch, of each process where a launcher started several.
        batch_tokens: padded tokens in a micro-batch at most, of all its texts; one with more is divided, and
            ``batch_size`` is the most examples. Arrays have no tokens. ``None`` is any number.
        dynamic_batch: bounds for a size by the memory in use; ``batch_size`` is then of evaluation alone.
        grad_cache: texts that are embedded at once, forward and backward, for a loss of the embeddings of the
            whole micro-batch (Gao et al. 2021); ``None`` embeds all of them in one pass.
        accumulation: micro-batches per update, weighted by what the objective's loss is the mean of.
        clip_norm: largest global norm of the gradient; ``None`` does not clip.
        seed: of the order of the data and of the adapters' first values.
        validate_every: updates between validations; also at the start and the end.
        checkpoint_every: updates between checkpoints.
        keep: checkpoints kept, the best one apart.
        group_by_length: build batches from texts of like length.
        prefetch: batches that are made ahead of the updates that want them.
        device: where it computes: ``auto`` (a GPU where there is one), ``cpu`` or ``gpu``. A GPU is Metal or
            CUDA, in PyTorch Metal is ``mps``.
        keep_freed: keep memory that was freed for the next arrays, so that updates on a CPU of Linux take the same time
            each; ``false`` gives it back to the system, as far as the C library does.
        compile: compile the step; ``None`` does in MLX where it pays: on a GPU, and on a CPU the optimizer's
            update alone, where the run has enough updates of enough parameters. Not in PyTorch.
        watchdog: seconds that may pass without an update, a batch of a validation or a checkpoint being
            done; what hangs longer ends the process with exit code 3 and leaves what it was doing in
            ``stack.txt``, and a checkpoint. ``None`` waits for ever.
        npz: write the result as ``.npz`` too.
        tensorboard: write the figures for TensorBoard, to ``tensorboard`` in the run's folder.
        nonfinite_limit: stop after this many updates in a row with a loss or gradient not finite.
        tolerance: largest gradient difference between MLX and torch that preflight accepts,
            as a fraction of the largest gradient.
    """

    model: str
    trust_code: str | None = None
    model_options: dict[str, Any] = Field({})
    tokenizer: Path | None = None
    data: Data
    objective: Objective
    metric: str | None = None
    higher_is_better: bool | None = None
    adapter: AdapterSection | None = None
    train: tuple[str, ...] = ()
    freeze: tuple[str, ...] = ()
    mode: Literal["train", "eval"] = "train"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    checkpoint: tuple[str, ...] = ()
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None
    optimizer: Optimizer = AdamWSection()
    schedule: ScheduleSection = ScheduleSection()
    steps: PositiveInt = 100
    epochs: PositiveInt | None = None
    early_stopping: EarlyStopping | None = None
    batch_size: PositiveInt = 16
    batch_tokens: PositiveInt | None = None
    dynamic_batch: DynamicBatch | None = None
    grad_cache: PositiveInt | None = None
    accumulation: PositiveInt = 1
    clip_norm: PositiveFloat | None = 1.0
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0  # what every generator takes
    validate_every: PositiveInt = 25
    checkpoint_every: PositiveInt = 25
    keep: PositiveInt = 2
    group_by_length: bool = True
    prefetch: PrefetchSection = PrefetchSection()
    device: Literal["auto", "cpu", "gpu"] = "auto"
    keep_freed: bool = True
    compile: bool | None = None
    watchdog: PositiveFloat | None = 1800.0
    npz: bool = False
    tensorboard: bool = False
    nonfinite_limit: PositiveInt = 5
    tolerance: PositiveFloat = 1e-4

    @property
    def largest_batch(self) -> int:
        """The most examples in a micro-batch."""
        return self.dynamic_batch.max if self.dynamic_batch else self.batch_size

    @property
    def smallest_batch(self) -> int:
        """The fewest examples in a micro-batch."""
        return self.dynamic_batch.min if self.dynamic_batch else self.batch_size

    def sources(self) -> tuple[str | Path, ...]:
        """Return what a run reads: the model, the files of its data, and what else is named."""
        aware = self.adapter and self.adapter.quantize_aware
        named = (*(getattr(self.data, name) for name in SPLITS), self.tokenizer, aware)
        return self.model, *(path for path in named if isinstance(path, Path))


def load_config(source: str | Path | None, overrides: Sequence[str] = ()) -> TrainConfig:
    """Read a configuration and apply ``key.subkey=value`` OVERRIDES, values written as in YAML.

    Args:
        source: a YAML or TOML file, or the name of a recipe such as ``minilm-lora``. Where it is
            nothing, the recipe ``docstrings``, unless OVERRIDES name both a model and data.
        overrides: applied in order on top of it.

    Raises:
        BadInputError: the file is missing or cannot be parsed.
        MismatchError: unknown keys, wrong types and missing values, all of them.
    """
    if source is None and not _complete(overrides):
        source = DEFAULT
    settings = read_settings(_locate(source)) if source is not None else {}
    if any(override.startswith("data.train=") for override in overrides):
        _unbundle(settings)
    for override in overrides:
        _override(settings, override)
    return validate(settings)


def validate(settings: Mapping[str, Any]) -> TrainConfig:
    """Return SETTINGS as a configuration, relative paths made absolute: a run may be resumed anywhere.

    Raises:
        MismatchError: everything that is wrong with them, with the nearest known key.
    """
    problems = [
        f"{one} and {other} both say {what}; remove one of them"
        for (one, other), what in EITHER.items()
        if None not in (settings.get(one), settings.get(other))
    ]
    if problems:
        raise MismatchError("the training configuration is not valid", problems)
    given = {name: value for name, value in settings.items() if (name, value) != ("steps", None)}
    whole = {name: _section(name, value) for name, value in given.items()}
    try:
        config = TrainConfig.model_validate_json(json.dumps(whole, default=str))
    except ValidationError as error:
        problems = problems_of(error, TrainConfig, whole)
        raise MismatchError("the training configuration is not valid", problems) from None
    paths = {name: getattr(config.data, name) for name in SPLITS}
    if isinstance(config.data, Rows):
        paths |= _own_splits(config.data)
    absolute = {
        name: Path(located(str(path))).absolute()
        for name, path in paths.items()
        if isinstance(path, Path)
    }
    model = located(config.model)
    changed: dict[str, Any] = {
        "data": config.data.model_copy(update=absolute),
        "model": str(Path(model).absolute()) if Path(model).exists() else model,
        "tokenizer": config.tokenizer and Path(located(str(config.tokenizer))).absolute(),
    }
    if config.adapter and isinstance(aware := config.adapter.quantize_aware, Path):
        update = {"quantize_aware": Path(located(str(aware))).absolute()}
        changed["adapter"] = config.adapter.model_copy(update=update)
    return config.model_copy(update=changed)


def _own_splits(data: Rows) -> dict[str, Path]:
    """Return the splits beside the training one in a folder of several that DATA names nothing in place of.

    Raises:
        MismatchError: a share of the training split is wanted, and there is a file.
    """
    given = data.model_fields_set
    own = {name: it for name, it in inside(data.train).items() if name in SPLITS[1:]}
    if "validation" in own and "validation" in given and not isinstance(data.validation, Path):
        problem = (
            f"data.validation: {data.validation} asks for a share, and {own['validation']} is there;"
            f" leave it out, or give data.train={data.train / FOLDER['train']}"
        )
        raise MismatchError("the training configuration is not valid", [problem])
    return {name: path for name, path in own.items() if name not in given}


def _unbundle(settings: dict[str, Any]) -> None:
    """Leave out of SETTINGS the splits that a recipe bundles: they belong to a training split that is replaced."""
    if isinstance(data := settings.get("data"), dict):
        bundled = {name for name in SPLITS if str(data.get(name)).startswith(PREFIX)}
        settings["data"] = {name: value for name, value in data.items() if name not in bundled}


def _section(name: str, value: Any) -> Any:
    """Return VALUE, a name alone as the section that it stands for, or the path of data."""
    if name == "data" and isinstance(value, str):
        path = Path(located(value))
        if value.startswith(PREFIX):
            provide([path])
        if value.startswith(PREFIX) or path.exists():
            return section_of(path)
    return {CHOSEN_BY[name]: value} if name in CHOSEN_BY and isinstance(value, str) else value


def dump_config(config: TrainConfig) -> str:
    """Return CONFIG as YAML that ``load_config`` reads back to an equal one."""
    unused = {"steps"} if config.epochs else set()
    return yaml.safe_dump(config.model_dump(mode="json", exclude=unused), sort_keys=False)


def differences(old: TrainConfig, new: TrainConfig) -> list[str]:
    """Return one line for every key whose value is not the same in both."""
    before, after = (dict(_leaves(config.model_dump(mode="json"))) for config in (old, new))
    apart = [
        key for key in sorted(before.keys() | after.keys()) if before.get(key) != after.get(key)
    ]
    what = [key for key in WHOLE if key in apart]  # where these differ, all below them does
    return [
        f"{key}: {before.get(key)} in the run, {after.get(key)} asked for" for key in what or apart
    ]


def _complete(overrides: Sequence[str]) -> bool:
    """Say whether OVERRIDES name a model and data, so that no recipe is needed."""
    sections = {override.partition("=")[0].partition(".")[0] for override in overrides}
    return {"model", "data"} <= sections


def recipes() -> dict[str, Path]:
    """Return the file of every recipe by its name."""
    folder = Path(str(resources.files(f"{__package__}.recipes")))
    return {file.stem: file for file in sorted(folder.glob("*.yaml"))}


def _locate(source: str | Path) -> Path:
    path, known = Path(source), recipes()
    if path.is_file():
        return path
    if str(source) in known:
        return known[str(source)]
    near = difflib.get_close_matches(str(source), known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise BadInputError(
        f"{source}: no such file, and no recipe of this name; recipes are {', '.join(known)}{hint}"
    )


def _override(settings: dict[str, Any], override: str) -> None:
    """Set one dotted key in SETTINGS, making the sections on the way."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise BadInputError(f"--set {override}: write it as key=value, for example steps=200")
    *sections, last = key.split(".", maxsplit=DEEPEST)
    section = settings
    for name in sections:
        if not isinstance(section.get(name), dict):
            short = _section(name, section.get(name)) if section is settings else None
            section[name] = short if isinstance(short, dict) else {}
        section = section[name]
    section[last] = parse_yaml(text, f"--set {key}")
    if key in LENGTHS and section[last] is not None:
        settings.pop(LENGTHS[key], None)


def _leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(tree, dict):
        yield prefix, tree
        return
    for key, value in tree.items():
        yield from _leaves(value, f"{prefix}.{key}" if prefix else key)
