"""The configuration of a training run: strict, complete, and saved in the run as it was used."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError

from ..converters.documents import parse_yaml, read_settings
from ..errors import BadInputError, MismatchError
from .bundled import located

DEFAULT = "docstrings"  # the recipe where none is named: complete, small, needs no network
DEEPEST = 8  # sections that --set makes; what is below them is no key of ours

Fraction = Annotated[float, Field(ge=0, le=1)]
Buckets = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]


class Section(BaseModel):
    """A part of the configuration: strict types, no unknown keys, immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Lengths(Section):
    """Padded lengths in tokens: a batch takes the smallest that fits, longer texts are cut."""

    query: Buckets = (24,)
    document: Buckets = (48,)


class PairsData(Section):
    """Texts that belong together: JSON lines with ``query`` and ``document``."""

    kind: Literal["pairs"]
    train: Path
    validation: Path
    test: Path | None = None
    lengths: Lengths = Lengths()


class SeriesData(Section):
    """Arrays in ``.npz`` files: one row of every array is one example."""

    kind: Literal["series"]
    train: Path
    validation: Path
    test: Path | None = None


class ContrastiveObjective(Section):
    """Symmetric InfoNCE over the pairs of a batch."""

    name: Literal["contrastive"]
    temperature: PositiveFloat = 0.05


class RegressionObjective(Section):
    """Mean squared error; INPUT and TARGET are the names of arrays in the data."""

    name: Literal["regression"]
    input: str = "series"
    target: str = "target"


class AdapterSection(Section):
    """Low-rank adapters on the linear modules whose path ends in one of TARGETS."""

    rank: PositiveInt = 8
    scale: PositiveFloat = 2.0
    targets: Annotated[tuple[str, ...], Field(min_length=1)] = ("query", "value")
    dropout: Literal[0] = 0


class OptimizerSection(Section):
    """AdamW (Loshchilov and Hutter 2019), bias correction always on."""

    name: Literal["adamw"] = "adamw"
    learning_rate: PositiveFloat = 1e-3
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    eps: PositiveFloat = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.01


class ScheduleSection(Section):
    """Learning rate over the run: WARMUP is a fraction of it, FINAL a fraction of the peak."""

    kind: Literal["cosine", "linear", "constant"] = "cosine"
    warmup: Fraction = 0.1
    final: Fraction = 0.0


class TrainConfig(Section):
    """A whole training run.

    Attributes:
        model: what ``weighbridge.open`` takes: a directory or ``module:factory``.
        trust_code: the module that may be imported for it.
        data: where the examples are; ``bundled:`` files are made when first needed.
        objective: what is minimised.
        adapter: low-rank adapters; ``None`` trains every parameter.
        freeze: parameters that stay as they are, as module path endings or patterns.
        steps: updates.
        batch_size: examples in a micro-batch.
        accumulation: micro-batches per update, weighted by their examples.
        clip_norm: largest global norm of the gradient; ``None`` does not clip.
        seed: of the order of the data and of the adapters' first values.
        validate_every: updates between validations; also at the start and the end.
        checkpoint_every: updates between checkpoints.
        keep: checkpoints kept, the best one apart.
        group_by_length: build batches from texts of like length.
        compile: compile the MLX step; ``None`` does where it pays, on a GPU (on a CPU compiling takes
            longer than it saves in some hundred steps).
        nonfinite_limit: stop after this many updates in a row with a loss or gradient not finite.
        tolerance: largest gradient difference between MLX and torch that preflight accepts,
            as a fraction of the largest gradient.
    """

    model: str
    trust_code: str | None = None
    data: Annotated[PairsData | SeriesData, Field(discriminator="kind")]
    objective: Annotated[ContrastiveObjective | RegressionObjective, Field(discriminator="name")]
    adapter: AdapterSection | None = None
    freeze: tuple[str, ...] = ()
    optimizer: OptimizerSection = OptimizerSection()
    schedule: ScheduleSection = ScheduleSection()
    steps: PositiveInt = 100
    batch_size: PositiveInt = 16
    accumulation: PositiveInt = 1
    clip_norm: PositiveFloat | None = 1.0
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0  # what every generator takes
    validate_every: PositiveInt = 25
    checkpoint_every: PositiveInt = 25
    keep: PositiveInt = 2
    group_by_length: bool = True
    compile: bool | None = None
    nonfinite_limit: PositiveInt = 5
    tolerance: PositiveFloat = 1e-4

    def sources(self) -> tuple[str | Path | None, ...]:
        """Return what a run reads: the model and the files of its data."""
        return self.model, self.data.train, self.data.validation, self.data.test


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
    for override in overrides:
        _override(settings, override)
    return validate(settings)


def validate(settings: Mapping[str, Any]) -> TrainConfig:
    """Return SETTINGS as a configuration, relative paths made absolute: a run may be resumed anywhere.

    Raises:
        MismatchError: everything that is wrong with them, with the nearest known key.
    """
    try:
        config = TrainConfig.model_validate_json(json.dumps(settings, default=str))
    except ValidationError as error:
        problems = [_problem(detail) for detail in error.errors()]
        raise MismatchError("the training configuration is not valid", problems) from None
    paths = {name: getattr(config.data, name) for name in ("train", "validation", "test")}
    absolute = {name: Path(located(str(path))).absolute() for name, path in paths.items() if path}
    model = located(config.model)
    model = str(Path(model).absolute()) if Path(model).exists() else model
    data = config.data.model_copy(update=absolute)
    return config.model_copy(update={"data": data, "model": model})


def dump_config(config: TrainConfig) -> str:
    """Return CONFIG as YAML that ``load_config`` reads back to an equal one."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def differences(old: TrainConfig, new: TrainConfig) -> list[str]:
    """Return one line for every key whose value is not the same in both."""
    before, after = (dict(_leaves(config.model_dump(mode="json"))) for config in (old, new))
    return [
        f"{key}: {before.get(key)} in the run, {after.get(key)} asked for"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
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
            section[name] = {}
        section = section[name]
    section[last] = parse_yaml(text, f"--set {key}")


def _leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(tree, dict):
        yield prefix, tree
        return
    for key, value in tree.items():
        yield from _leaves(value, f"{prefix}.{key}" if prefix else key)


def known_keys(section: type[BaseModel] = TrainConfig, prefix: str = "") -> Iterator[str]:
    """Yield the dotted name of every key of a configuration, sections included.

    >>> "optimizer.learning_rate" in set(known_keys())
    True
    """
    for name, field in section.model_fields.items():
        yield prefix + name
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from known_keys(part, f"{prefix}{name}.")


_TAGS = frozenset({"pairs", "series", "contrastive", "regression"})  # pydantic puts them in a path


def _problem(detail: Mapping[str, Any]) -> str:
    """Return one line for one complaint of pydantic."""
    path = [str(part) for at, part in enumerate(detail["loc"]) if at != 1 or part not in _TAGS]
    key = ".".join(path)
    if detail["type"] != "extra_forbidden":
        return f"{key}: {detail['msg']}"
    near = " or ".join(_nearest(key))
    return f"{key}: no such key" + (f"; did you mean {near}?" if near else "")


def _nearest(key: str, cutoff: float = 0.5) -> list[str]:
    """Return the keys that KEY may stand for, several only where they are equally near.

    >>> _nearest("lr"), _nearest("optimizer.lerning_rate")
    (['optimizer.learning_rate'], ['optimizer.learning_rate'])
    """
    near = {known: _likeness(key, known) for known in known_keys()}
    best = max(near.values())
    return sorted(known for known, like in near.items() if like == best >= cutoff)


def _likeness(key: str, known: str) -> float:
    """Return how like KNOWN the KEY is, from 0 to 1: in full, by its last name, or by initials."""
    leaf, full = key.rpartition(".")[2], known.rpartition(".")[2]
    initials = "".join(word[0] for word in full.split("_"))
    if leaf == full or (leaf == initials and len(leaf) > 1):
        return 1.0
    return max(_ratio(key, known), _ratio(leaf, full))


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()
