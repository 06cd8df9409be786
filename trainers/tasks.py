"""A configuration made real: the model, its loss, its data, and how it is judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import numpy as np
import xxhash

from ..converters.models import Model
from ..converters.planning.opening import open as open_model
from ..converters.values import Array, LowRank
from ..errors import BadInputError, MismatchError
from .adapters import initial_updates, linear_shapes, parameters_of, select
from .config import PairsData, SeriesData, TrainConfig
from .data.batches import Dataset, Order
from .data.pairs import Pairs, leaked, load_tokenizer, read_pairs
from .data.series import Series, read_arrays
from .evaluation import Scores, measure_loss, measure_retrieval
from .steps.base import Step

PREFIX: Final = "model."  # of the model's own names inside its loss module
SPLITS: Final = ("train", "validation", "test")
Dynamic = Mapping[str, Mapping[int, str]]
SaveWeights = Callable[[Path, Mapping[str, Array]], None]


class Objective(NamedTuple):
    """How a model is trained and judged.

    Attributes:
        make_loss: the model to the torch module that returns the loss.
        make_evaluated: the model to the torch module that evaluation runs, if it is another one.
        dynamic: sizes of the loss module's inputs that vary.
        evaluated_dynamic: the same for that module's inputs.
        metric: the figure that chooses the best checkpoint.
        higher_is_better: which way it improves.
        measure: takes the figures.
    """

    make_loss: Callable[[Any], Any]
    make_evaluated: Callable[[Any], Any] | None
    dynamic: Dynamic
    evaluated_dynamic: Dynamic
    metric: str
    higher_is_better: bool
    measure: Callable[[Step, Dataset, int], Scores]


class Parameter(NamedTuple):
    """What the configuration says of a parameter."""

    shape: tuple[int, ...]
    trainable: bool


@dataclass(frozen=True)
class Task:
    """What is trained on what.

    Attributes:
        model: what the user pointed at; ``None`` where a module was given as it is.
        module: the torch module, in evaluation mode: no dropout, normalisation statistics fixed.
        objective: its loss and its judge.
        splits: the data by name; ``test`` may be missing.
        updates: the adapters' first values by torch weight name; empty for full fine-tuning.
        leaks: pairs of validation and test with a text that is also trained on.
        save_weights: writes whole weights, given by torch name, to a folder after full
            fine-tuning, in place of ``model.safetensors`` in MLX naming.
    """

    model: Model | None
    module: Any
    objective: Objective
    splits: Mapping[str, Dataset]
    updates: Mapping[str, LowRank]
    leaks: Mapping[str, int]
    save_weights: SaveWeights | None = None

    def parameters(self) -> dict[str, Parameter]:
        """Return every parameter by its name in the loss module, adapters included."""
        own = {
            PREFIX + name: Parameter(tuple(value.shape), value.requires_grad)
            for name, value in self.module.named_parameters()
        }
        adapters = parameters_of(self.updates, PREFIX)
        return own | {name: Parameter(value.shape, True) for name, value in adapters.items()}

    def frozen(self) -> str:
        """Return a hash of the weights that training does not change: a run goes on with the same ones."""
        digest = xxhash.xxh3_128()
        for name, value in sorted(self.module.state_dict(keep_vars=True).items()):
            if not value.requires_grad:
                digest.update(f"{name}{value.dtype}{tuple(value.shape)}".encode())
                bits = np.ascontiguousarray(value.detach().numpy()).reshape(-1).view(np.uint8)
                digest.update(bits.data)
        return digest.hexdigest()

    def order(self, config: TrainConfig) -> Order:
        """Return the order in which training sees its examples."""
        return Order(
            self.splits["train"],
            config.batch_size,
            config.seed,
            group_by_length=config.group_by_length,
        )


def build_task(config: TrainConfig, module: Any = None, tokenizer: Path | None = None) -> Task:
    """Open the model and the data of CONFIG and check that they fit.

    Args:
        config: the run.
        module: a torch module to train in place of ``config.model``.
        tokenizer: the directory of the tokenizer, where it is not the model's own.

    Raises:
        WeighbridgeError: anything that would stop the run later.
    """
    model = None if module else open_model(config.model, trust_code=config.trust_code)
    splits, leaks = _read_data(config, tokenizer or (model.path if model else None))
    if model and isinstance(config.data, PairsData):
        _require_known(cast(Mapping[str, Pairs], splits), model, config.data)
    module = module or _build_module(cast(Model, model))
    _freeze(module, config)
    return Task(model, module, _objective(config), splits, _updates(module, config), leaks)


def _build_module(model: Model) -> Any:
    """Return MODEL's torch module with the parameters trainable that its author left so."""
    from ..converters.maps.sources.torch_side import with_torch_side
    from ..converters.runtimes.torch import build_module

    own: Any = model.factory.named_parameters() if model.factory else ()
    trainable = {name: parameter.requires_grad for name, parameter in own}
    module = build_module(with_torch_side(model))  # which freezes everything
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(trainable.get(name, True))
    return module


def _freeze(module: Any, config: TrainConfig) -> None:
    """Keep what the configuration freezes, and everything when adapters are trained."""
    parameters = dict(module.eval().named_parameters())
    frozen = (
        select(parameters, _with_children(config.freeze), "parameters") if config.freeze else ()
    )
    for name in parameters if config.adapter else frozen:
        parameters[name].requires_grad_(False)


def _with_children(patterns: Sequence[str]) -> list[str]:
    """Let a pattern without a parameter's name mean all parameters below it."""
    return [f"*{name}*" if "*" not in name else name for name in patterns]


def _updates(module: Any, config: TrainConfig) -> dict[str, LowRank]:
    if config.adapter is None:
        return {}
    shapes = linear_shapes(module)
    chosen = select(shapes, config.adapter.targets, "linear modules")
    weights = {f"{name}.weight": shapes[name] for name in chosen}
    return initial_updates(
        weights, rank=config.adapter.rank, scale=config.adapter.scale, seed=config.seed
    )


def _read_data(
    config: TrainConfig, tokenizer: Path | None
) -> tuple[dict[str, Dataset], dict[str, int]]:
    paths = {name: getattr(config.data, name) for name in SPLITS}
    paths = {name: path for name, path in paths.items() if path}
    if isinstance(config.data, SeriesData):
        return {name: _read_series(path, config) for name, path in paths.items()}, {}
    pairs = _read_pairs(config.data, paths, tokenizer)
    leaks = {
        name: leaked(pairs["train"], split) for name, split in pairs.items() if name != "train"
    }
    return dict(pairs), leaks


def _read_series(path: Path, config: TrainConfig) -> Dataset:
    if config.objective.name != "regression":
        raise BadInputError(f"objective {config.objective.name} needs data of kind pairs")
    names = {"series": config.objective.input, "target": config.objective.target}
    arrays = read_arrays(path, list(names.values()))
    return Series({name: arrays[source] for name, source in names.items()})


def _read_pairs(
    data: PairsData, paths: Mapping[str, Path], tokenizer: Path | None
) -> dict[str, Pairs]:
    if tokenizer is None:
        raise BadInputError("texts need a tokenizer, and the model has no directory to hold one")
    tokenize = load_tokenizer(tokenizer)
    lengths: dict[str, Sequence[int]] = {
        name: sorted(buckets) for name, buckets in data.lengths.model_dump().items()
    }
    return {name: Pairs(read_pairs(path), tokenize, lengths) for name, path in paths.items()}


def _require_known(splits: Mapping[str, Pairs], model: Model, data: PairsData) -> None:
    """Refuse ids and positions that MODEL has no row for.

    Raises:
        MismatchError: names the lengths that are too long, and the splits with such ids.
    """
    ports = [port for port in model.signature.inputs if port.role == "token_ids"]
    words = ports[0].limit("vocabulary", 0) if ports else 0
    positions = model.config.get("max_position_embeddings")
    problems = [
        f"data.lengths.{name}: {length} tokens, and the model has {positions} positions"
        for name, lengths in data.lengths.model_dump().items()
        for length in lengths
        if isinstance(positions, int) and length > positions
    ]
    for name, split in splits.items():
        largest = max(max(ids, default=0) for field in split.ids.values() for ids in field)
        if words and largest >= words:
            problems.append(f"data.{name}: token id {largest}, and the model has 0 to {words - 1}")
    if problems:
        raise MismatchError(f"{model.spec} does not fit the texts of the run", problems)


def _objective(config: TrainConfig) -> Objective:
    """Return the objective of CONFIG; its torch module is imported only now."""
    wanted, kind = config.objective, config.data.kind
    if wanted.name == "regression":
        if kind != "series":
            raise BadInputError("objective regression needs data of kind series")
        from .objectives.regression import Regression

        batch = {0: "batch"}
        dynamic = {"series": batch, "target": batch}
        return Objective(Regression, None, dynamic, {}, "loss", False, measure_loss)
    from .objectives.contrastive import Contrastive, Embedding

    temperature = wanted.temperature
    texts = {name: {0: "batch", 1: name} for name in ("query", "document")}
    return Objective(
        make_loss=lambda model: Contrastive(model, temperature),
        make_evaluated=Embedding,
        dynamic={
            f"{name}_{part}": axes for name, axes in texts.items() for part in ("ids", "mask")
        },
        evaluated_dynamic={part: {0: "batch", 1: "sequence"} for part in ("ids", "mask")},
        metric="mrr",
        higher_is_better=True,
        measure=lambda step, pairs, size: measure_retrieval(step, pairs, size, temperature),
    )
