"""A configuration made real: the model, its loss, its data, and how it is judged."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import xxhash

from ..converters.models import Model
from ..converters.quantization import Blocks, Dequantized
from ..converters.values import Array, LowRank
from ..errors import BadInputError, MismatchError, UnsupportedError
from .adapters import (
    in_out,
    initial_updates,
    linear_shapes,
    parameters_of,
    select,
    select_parameters,
    sharing,
    turned,
    with_magnitudes,
)
from .checks.decisions import require_no_parameter_hooks
from .config import TrainConfig
from .configuration.opening import opened
from .configuration.updates import AdapterSection
from .data.batches import Dataset, Order
from .data.context import Context
from .data.reading import leaks, read_splits
from .live import Live
from .objectives.base import Objective, objective_class
from .objectives.chosen import check_labels, fitted, objective_of, try_loss
from .objectives.order import input_orders
from .objectives.own import (
    PREFIX,
    keep_frozen,
    note,
    own_parameters,
    parted,
    require_trained,
    tie,
)
from .rounding import Grids, grids_of
from .steps.modes import trains

SaveWeights = Callable[[Path, Mapping[str, Array]], None]


class Parameter(NamedTuple):
    """What the configuration says of a parameter."""

    shape: tuple[int, ...]
    trainable: bool


@dataclass(frozen=True)
class Task:
    """What is trained on what.

    Attributes:
        model: what the user pointed at; ``None`` where a module was given as it is.
        module: the torch module, each part in the mode in which it is to be trained.
        objective: its loss and its judge.
        splits: the data by name; ``test`` may be missing.
        updates: the adapters' first values by torch weight name; empty for full fine-tuning.
        leaks: pairs of validation and test with a text that is also trained on.
        blocks: weights of a quantized model by torch name, codes and scales as they lie; the module has
            the values that they stand for.
        save_weights: writes whole weights, given by torch name, to a folder after full
            fine-tuning, in place of ``model.safetensors`` in MLX naming.
        grids: what sums of weights and updates are rounded to.
        loss: the objective's module around the module, made once: all that looks at it or trains it has this
            one, or a copy.
        evaluated: the one that evaluation runs, likewise.
        left: names of the objective's own parameters that stay because the setting ``train`` names others.
    """

    model: Model | None
    module: Any
    objective: Objective
    splits: Mapping[str, Dataset]
    updates: Mapping[str, LowRank]
    leaks: Mapping[str, int]
    save_weights: SaveWeights | None = None
    blocks: Mapping[str, Blocks] = field(default_factory=dict)
    grids: Grids = field(default_factory=Grids)
    loss: Any = None
    evaluated: Any = None
    left: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Make the modules that were not given."""
        if self.loss is None:
            object.__setattr__(self, "loss", self.objective.make_loss(self.module))
        if self.evaluated is None:
            make = self.objective.make_evaluated
            object.__setattr__(self, "evaluated", make(self.module) if make else self.loss)
            tie(self.evaluated, self.loss)

    def parameters(self) -> dict[str, Parameter]:
        """Return every parameter by its name in the loss module, adapters and the objective's own included."""
        own = {
            PREFIX + name: Parameter(tuple(value.shape), value.requires_grad)
            for name, value in self.module.named_parameters()
        }
        adapters = parameters_of(self.updates, PREFIX)
        further = adapters | self.own()
        return own | {name: Parameter(tuple(it.shape), True) for name, it in further.items()}

    def own(self) -> dict[str, Any]:
        """Return the objective's own parameters that train, by name."""
        return own_parameters(self.loss)

    def own_notes(self) -> list[str]:
        """Return what a user should know of the objective's own parameters."""
        return note(self.own(), self.left)

    def notes(self) -> Iterator[str]:
        """Yield what a user should know of the objective, and of the data, such as rows left out, by split."""
        yield from self.own_notes()
        for name, split in self.splits.items():
            yield from (f"data.{name}: {note}" for note in getattr(split, "notes", ()))

    def frozen(self) -> str:
        """Return a hash of the weights that training does not change: a run goes on with the same ones.

        Those of another model in the loss, such as a teacher, count as well.
        """
        digest = xxhash.xxh3_128()
        others = parted(self.loss.state_dict(keep_vars=True))[1]
        for state in (self.module.state_dict(keep_vars=True), others):
            for name, value in sorted(state.items()):
                if not value.requires_grad:
                    digest.update(f"{name}{value.dtype}{tuple(value.shape)}".encode())
                    digest.update(_bytes(value.detach().numpy()))
        for name, block in sorted(self.grids.blocks.items()):
            digest.update(f"{name} {block.scheme}".encode())
            for array in block.parts.values():
                digest.update(_bytes(array))
        return digest.hexdigest()

    def order(self, config: TrainConfig) -> Order:
        """Return the order in which training sees its examples."""
        return Order(
            self.splits["train"],
            config.largest_batch,
            config.seed,
            group_by_length=config.group_by_length,
            most_tokens=config.batch_tokens,
            apart=self.objective.apart,
        )


def _bytes(array: Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def build_task(
    config: TrainConfig, module: Any = None, tokenizer: Path | None = None, live: Live | None = None
) -> Task:
    """Open the model and the data of CONFIG and check that they fit.

    Args:
        config: the run.
        module: a torch module to train in place of ``config.model``.
        tokenizer: the directory of the tokenizer, where it is not the model's own.
        live: what is in memory, a module with it.

    Raises:
        WeighbridgeError: anything that would stop the run later.
    """
    module = live.module if live else module
    objective = objective_of(config, *((live.objective, live.metric) if live else ()))
    model = None if module else _open(config)
    splits = live.splits if live else None
    context = _context(model, tokenizer or config.tokenizer)
    given = objective_class(config.objective.name, live.objective if live else None)
    orders = input_orders(given, module or (model and model.factory))
    context = replace(context, orders=orders, writes=getattr(given, "writes", False))
    splits = splits or read_splits(config.data, context)
    objective = fitted(objective, config, splits["train"])
    module = module.float() if module else _build_module(cast(Model, model))  # masters, see config
    blocks = _blocks(model, module) if model else {}
    _check_grad_cache(config, objective, module)
    _freeze(module, config, blocks)
    check_labels(objective, module, splits)
    grids = _grids(module, config, Grids(blocks, _tensors(model)))
    objective = grids.begun(objective)
    if grids.original:  # the module has other values than those of the codes there
        blocks = {name: it for name, it in blocks.items() if name not in grids.blocks}
    updates, shared = _updates(module, config), leaks(splits)
    task = Task(model, module, objective, splits, updates, shared, blocks=blocks, grids=grids)
    return _checked(task, config)


def _checked(task: Task, config: TrainConfig) -> Task:
    """Return TASK with what CONFIG freezes of the objective's own, and with a loss that can be computed.

    Raises:
        BadInputError: nothing would train, or PyTorch cannot compute the loss.
        MismatchError: patterns that mean nothing, or parameters that would not train.
    """
    require_no_parameter_hooks(task.loss)
    left = keep_frozen(task.loss, config.train, config.freeze)
    if not (config.adapter or any(it.requires_grad for it in task.loss.parameters())):
        raise BadInputError("freeze leaves nothing to train; take something out of it")
    require_trained(task.loss, task.evaluated, cached=config.grad_cache is not None)
    try_loss(task.loss, task.splits, config.largest_batch)
    return replace(task, left=left)


def _check_grad_cache(config: TrainConfig, objective: Objective, module: Any) -> None:
    """Refuse chunks whose gradient would not be that of the whole batch.

    Raises:
        MismatchError: says why, and what to set.
    """
    if config.grad_cache is None:
        return
    problems = []
    if objective.make_from_embeddings is None:
        name = config.objective.name
        problems.append(f"the objective {name} has no embeddings of texts; leave grad_cache out")
    if trains(module, config.mode):
        problems.append(
            "every text is embedded twice, and train mode would draw other random numbers the second"
            " time; set mode: eval, which trains without dropout"
        )
    if problems:
        raise MismatchError(f"grad_cache {config.grad_cache} does not fit the run", problems)


def _open(config: TrainConfig) -> Model:
    from ..converters.planning.transcoding import quantized_view

    return quantized_view(opened(config))


def _blocks(model: Model, module: Any) -> dict[str, Blocks]:
    """Return the quantized weights of MODEL that MODULE holds the values of, by torch name.

    A function that builds a module says itself which it has: the module's attribute ``quantized``.
    """
    from ..converters.maps.sources.torch_blocks import torch_blocks
    from ..converters.runtimes.captured import equal

    own = dict(module.named_parameters())
    declared = getattr(model.factory, "quantized", {})
    found = torch_blocks(model).blocks if model.path else declared
    return {name: it for name, it in found.items() if name in own and equal(own[name], it)}


def _tensors(model: Model | None) -> Dequantized | None:
    tensors = model.tensors if model else None
    return tensors if isinstance(tensors, Dequantized) else None


def _build_module(model: Model) -> Any:
    """Return MODEL's torch module with the parameters trainable that its author left so."""
    from ..converters.maps.sources.torch_side import with_torch_side
    from ..converters.runtimes.torch import build_module

    if model.factory:
        require_no_parameter_hooks(model.factory)
    own: Any = model.factory.named_parameters() if model.factory else ()
    trainable = {name: parameter.requires_grad for name, parameter in own}
    module = build_module(with_torch_side(model)).train()  # which froze everything, in eval mode
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(trainable.get(name, True))
    if model.factory and model.factory.training:
        modes = {name: part.training for name, part in model.factory.named_modules()}
        for name, part in module.named_modules():
            part.training = modes.get(name, True)
    return module


def _freeze(module: Any, config: TrainConfig, blocks: Collection[str]) -> None:
    """Keep what the configuration freezes, and with adapters or ``train`` all but what is named.

    Raises:
        MismatchError: of the quantized weights BLOCKS some would train.
    """
    parameters = dict(module.named_parameters())
    trained, frozen = (_meant(parameters, it) for it in (config.train, config.freeze))
    for name, parameter in parameters.items():
        alone = (config.adapter or config.train) and name not in trained
        if alone or name in frozen:
            parameter.requires_grad_(False)
    if problems := [name for name in blocks if parameters[name].requires_grad]:
        raise MismatchError(
            "quantized weights cannot be trained; give an adapter, or freeze them", problems
        )


def _meant(names: Collection[str], patterns: Sequence[str]) -> set[str]:
    """Return which NAMES of the model's parameters PATTERNS mean; one that means none may mean the objective's."""
    found: set[str] = set()
    for pattern in patterns:
        with suppress(MismatchError):
            found |= select_parameters(names, [pattern], "")
    return found


def _adapted(module: Any, settings: AdapterSection) -> dict[str, tuple[int, int]]:
    """Return the shapes of the weights that adapters change, by name.

    Raises:
        BadInputError: a rank that none of them has room for.
        MismatchError: targets that are no linear modules.
        UnsupportedError: targets that share their weights, or DoRA of those that hold theirs turned.
    """
    shapes = linear_shapes(module)
    names = select(shapes, settings.targets, "linear modules", "adapter.targets")
    shared = sharing(module)
    for name in filter(shared.get, names):
        raise UnsupportedError(
            f"the weight of {name} is that of {shared[name][0]} too, which an adapter would change as well;"
            " give other adapter.targets"
        )
    refused = [name for name in names if settings.dora and in_out(module.get_submodule(name))]
    if refused:
        raise UnsupportedError(
            f"DoRA is not trained on a Conv1D of transformers, as {refused[0]} is; leave adapter.dora out"
        )
    chosen = {name: shapes[name] for name in names}
    most = max(map(min, chosen.values()))
    if settings.rank > most:
        raise BadInputError(
            f"adapter.rank is {settings.rank}, and no update of its targets has a rank over {most}, the"
            f" smaller side of the largest; give --set adapter.rank={most} or less"
        )
    return {f"{name}.weight": shape for name, shape in chosen.items()}


def _grids(module: Any, config: TrainConfig, own: Grids) -> Grids:
    if config.adapter is None:
        return Grids()
    return grids_of(config.adapter.quantize_aware, module, _adapted(module, config.adapter), own)


def _updates(module: Any, config: TrainConfig) -> dict[str, LowRank]:
    if config.adapter is None:
        return {}
    settings, weights = config.adapter, _adapted(module, config.adapter)
    updates = initial_updates(weights, rank=settings.rank, scale=settings.scale, seed=config.seed)
    if settings.dora:
        return with_magnitudes(updates, dict(module.named_parameters()))
    return turned(updates, module)


def _context(model: Model | None, tokenizer: Path | None) -> Context:
    """Return what the data has to fit."""
    if model is None or model.path is None:
        return Context(tokenizer)
    ports = [port for port in model.signature.inputs if port.role == "token_ids"]
    positions = model.config.get("max_position_embeddings")
    return Context(
        tokenizer or model.path,
        vocabulary=(ports[0].limit("vocabulary", 0) or None) if ports else None,
        positions=positions if isinstance(positions, int) else None,
    )
