"""What a run leaves for others: an ordinary MLX adapter, or weights in MLX naming."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from .. import __version__
from ..converters.adapters.open import ADDED_TO, GRIDS, ORIGINAL
from ..converters.checkpoints import Header, open_checkpoint, save_tensors
from ..converters.checkpoints.shards import INDEX
from ..converters.common.dtypes import CODE
from ..converters.common.hints import command, unused
from ..converters.documents import CONFIG, read_object
from ..converters.libraries.finding import module_of
from ..converters.libraries.modules import torch_kinds
from ..converters.models import MANIFEST, Model
from ..converters.planning.opening import open as open_model
from ..converters.planning.transcoding import is_quantized, own_dtype
from ..converters.planning.view import converted_view
from ..converters.quantization import Dequantized
from ..converters.quantization.fingerprints import fingerprints
from ..converters.values import Array, Dense, LowRank, Value
from ..errors import UnsupportedError
from ..parity.weights.sketches.recorded import weight_records
from .adapters import parameters_of, turned, updates_of
from .config import TrainConfig
from .configuration.updates import AdapterSection
from .objectives.own import FILE as OWN
from .objectives.own import PREFIX, parted
from .tasks import Task

DECODER = "model."  # of the names in mlx-lm's classes
WEIGHTS, APART = "model.safetensors", "weights.safetensors"  # of a run, and of some checkpoints


def write_result(
    folder: Path,
    task: Task,
    adapter: AdapterSection | None,
    parameters: Mapping[str, Array],
    base: Callable[[frozenset[str]], str | None] | None = None,
) -> None:
    """Write trained PARAMETERS to FOLDER, as adapters or as whole weights, the objective's own apart.

    Args:
        folder: the run.
        task: what was trained.
        adapter: the adapters' settings, ``None`` after full fine-tuning.
        parameters: by their names in the loss module.
        base: what says which weights were trained on, where that is known already: see ``base_record``.
    """
    parameters, own = parted(parameters)
    if own:
        save_tensors(folder / OWN, own, {"format": "torch"})
    if adapter:
        from ..converters.adapters import write_adapter, write_peft

        torch = updates_of(parameters, adapter.scale, PREFIX)
        updates, whole = _mlx_form(task, torch), _beside(task, parameters)
        if whole or not updates or _only_in_torch(task):
            write_peft(folder, torch, kinds=dict(torch_kinds(task.module)), saved=whole)
        else:
            write_adapter(folder, updates, config={"model": task.model.spec} if task.model else {})
        if text := (base or partial(base_record, task))(frozenset({*updates, *torch})):
            (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")
        return
    trained = {name.removeprefix(PREFIX): value for name, value in parameters.items()}
    weights = _torch_weights(task) | trained
    weights |= {name: weights[first] for name, first in tied(task.module).items()}
    if task.save_weights:
        task.save_weights(folder, weights)
        return
    named, naming = mlx_weights(task, weights)
    save_tensors(folder / WEIGHTS, named, {"format": naming})


def check_result(task: Task, adapter: AdapterSection | None) -> None:
    """Find out before the first update whether what a run of TASK leaves can be written.

    Args:
        task: what will be trained.
        adapter: the adapters' settings, ``None`` for full fine-tuning.

    Raises:
        MismatchError: weights of the module have no place in the map of its model.
        UnsupportedError: adapters have no form that leads back from the model.
    """
    if adapter is None:
        if not task.save_weights:
            _moved(task, {}, _headers(_torch_weights(task)))
        return
    try:
        mlx_updates(task, task.updates)
    except UnsupportedError as error:
        if task.model and task.model.framework == "mlx":
            spec = task.model.spec
            there = command("convert", "mlx-to-torch", spec, unused(spec, "-torch"))
            raise UnsupportedError(
                f"an adapter of {spec} would have no way back: {error}. Give other adapter.targets, or"
                f" train the PyTorch model: {there}"
            ) from None
    with TemporaryDirectory() as folder:
        values = parameters_of(task.updates, PREFIX)
        write_result(Path(folder), task, adapter, values, lambda _: None)


def _beside(task: Task, parameters: Mapping[str, Array]) -> dict[str, Array]:
    """Return what of PARAMETERS was trained beside the adapters, by torch name, and what is in the modules of it.

    ``modules_to_save`` names modules, of which PEFT's readers want every tensor.
    """
    factors = (".lora_a", ".lora_b", ".lora_m")
    trained = {
        name.removeprefix(PREFIX): value
        for name, value in parameters.items()
        if not name.endswith(factors)
    }
    modules = {name.rpartition(".")[0] for name in trained}
    tensors = _torch_weights(task) if trained else {}
    return {
        name: it for name, it in tensors.items() if name.rpartition(".")[0] in modules
    } | trained


def name_apart(folder: Path) -> None:
    """Call the weights in FOLDER, a checkpoint of a run, so that mlx-embeddings does not take them for the run's.

    ``mlx_embeddings.load(RUN)`` reads every ``model*.safetensors`` below RUN. It loads a checkpoint by its new
    name too, and transformers does by the index; ``mlx_lm.load`` does not, so weights that it reads keep theirs:
    of a class that both libraries have those with the names of a decoder, all below ``model``.
    """
    weights, config = folder / WEIGHTS, folder / "config.json"
    if not (weights.is_file() and config.is_file()):
        return
    facts = read_object(config, CONFIG)
    headers = open_checkpoint(weights).headers
    read = module_of("mlx-lm", facts) and any(name.startswith(DECODER) for name in headers)
    if read or not module_of("mlx-embeddings", facts):
        return
    index = {
        "metadata": {"total_size": sum(it.nbytes for it in headers.values())},
        "weight_map": dict.fromkeys(sorted(headers), APART),
    }
    (folder / INDEX.format(stem="model")).write_text(json.dumps(index) + "\n", encoding="utf-8")
    weights.rename(folder / APART)


def write_npz(folder: Path) -> None:
    """Write beside the adapter or the weights in FOLDER the same as ``.npz``, what numpy has no dtype for in float32."""
    for path in folder.glob("*.safetensors"):
        checkpoint = open_checkpoint(path)
        arrays = {name: checkpoint.read(name) for name in checkpoint.headers}
        known = {
            name: it if it.dtype.isbuiltin == 1 else it.astype(np.float32)
            for name, it in arrays.items()
        }
        np.savez(path.with_suffix(".npz"), **known)  # type: ignore[arg-type]  # numpy types its one option here too


def next_command(out: Path, task: Task, config: TrainConfig) -> str:
    """Return the command that brings the run in OUT back to PyTorch, or else shows what is in it."""
    model = task.model
    trust = ("--trust-code", config.trust_code) if config.trust_code else ()
    known = model is not None and (
        _map(task) is not None or (config.adapter and _only_in_torch(task))
    )
    if model is None or model.path is None or not model.path.is_dir() or not known:
        return _shown(out, model, config)
    coded = is_quantized(model)
    if coded and model.framework == "torch":  # merges write MLX's form alone
        return command(
            "convert", "torch-to-mlx", config.model, unused(config.model, "-mlx"), *trust
        )
    if task.grids.blocks:
        original = ("--original", task.grids.original) if task.grids.original else ()
        return command("merge", config.model, out, unused(out, "-merged"), *original, *trust)
    tuned = unused(out, "-torch")
    if not config.adapter:
        return command("convert", "mlx-to-torch", out, tuned, *trust)
    if model.framework == "torch":
        return command("merge", config.model, out, tuned, *trust)
    dense = ("--dequantize", own_dtype(model)) if coded else ()
    way = ("mlx-to-torch", config.model, tuned, "--adapter", out)
    return command("convert", *way, *dense, *trust)


def command_after(onward: str, out: Path, config: TrainConfig) -> str:
    """Say what follows ONWARD, the next command of the run in OUT, where it makes only the base ready; else nothing."""
    if "torch-to-mlx" not in onward:
        return ""
    merging = command("merge", unused(config.model, "-mlx"), out, unused(out, "-merged"))
    return f"then: {merging}"


def _shown(out: Path, model: Model | None, config: TrainConfig) -> str:
    """Return the command for the run in OUT of a MODEL that leads to no other framework: export, or say what there is."""
    if config.adapter or model is None or model.factory is None:
        return command("inspect", out)
    trust = ("--trust-code", config.trust_code or config.model)
    if model.declared is None:
        return command("inspect", out, *trust)
    return command("export", "coreml", out, unused(out, ".mlpackage"), *trust)


def base_record(task: Task, changed: Collection[str]) -> str | None:
    """Return which weights of TASK the updates of CHANGED were trained on, so that no other base takes them."""
    model, grids = task.model, task.grids.recorded(changed)
    if model is None or not (model.path or grids):
        return None
    base: dict[str, Any] = {"spec": model.spec, "framework": model.framework}
    if model.path:
        tensors = model.tensors
        recipe = tensors.recipe if isinstance(tensors, Dequantized) else None
        base |= {
            "tensors": fingerprints(model.checkpoint, sorted(changed)),
            "weights": weight_records(model.checkpoint, sorted(changed)),
            "quantization": recipe.recorded() if recipe else None,
        }
    if grids:
        base |= {GRIDS: grids, ORIGINAL: task.grids.original or None}
        base |= {ADDED_TO: added_to(task, changed)} if task.grids.original else {}
    return json.dumps({"weighbridge": __version__, "adapter": "mlx", "base": base}, indent=1)


def added_to(task: Task, changed: Collection[str]) -> dict[str, str]:
    """Return hashes of the weights of CHANGED that TASK's original has, in the names and layout of its base."""
    assert task.model is not None  # noqa: S101  (there is a base)
    original = converted_view(open_model(task.grids.original), task.model.framework)
    return fingerprints(original.checkpoint, sorted(changed))


def _mlx_form(task: Task, updates: Mapping[str, LowRank]) -> dict[str, LowRank]:
    """Return UPDATES under their MLX names, none where some have no such form: PEFT's is torch's own."""
    try:
        return mlx_updates(task, updates)
    except UnsupportedError:
        return {}


def mlx_updates(task: Task, updates: Mapping[str, LowRank]) -> dict[str, LowRank]:
    """Return UPDATES under their MLX names; those of a model without a map keep their own, as of linear layers."""
    if _map(task) is None:
        return turned(updates, task.module)
    moved = _moved(task, updates, _headers(_torch_weights(task)))
    return {name: value for name, value in moved.items() if isinstance(value, LowRank)}


def mlx_weights(task: Task, weights: Mapping[str, Array]) -> tuple[dict[str, Array], str]:
    """Return WEIGHTS in MLX naming and layout and the word ``mlx``, or as they are and ``torch``."""
    values = {name: Dense(array) for name, array in weights.items()}
    moved = _moved(task, values, _headers(weights))
    naming = "torch" if _map(task) is None else "mlx"
    return {name: it.array for name, it in moved.items() if isinstance(it, Dense)}, naming


def _moved(
    task: Task, values: Mapping[str, Value], headers: Mapping[str, Header]
) -> Mapping[str, Value]:
    """Return VALUES of TASK's module, whose tensors are HEADERS, where its maps lead them."""
    from ..converters.maps import apply

    further = tied(task.module)
    for weight_map, config in _maps(task, headers):
        known = {
            name: it
            for name, it in headers.items()
            if name not in further or weight_map.reads(name)
        }
        plan = weight_map.bind(known, config=config)
        values = apply(plan, {name: it for name, it in values.items() if name in known})
        headers = plan.layout
    return values


def _maps(task: Task, names: Collection[str]) -> list[tuple[Any, Mapping[str, Any]]]:
    """Return the maps from NAMES of TASK's module to MLX's, each with the config that it is bound with.

    Where a class of transformers holds weights in another form than its checkpoints, such as experts
    in one tensor, the first one leads back to that form.
    """
    weight_map, model = _map(task), task.model
    if weight_map is None or model is None:
        return []
    last = (weight_map, model.config)
    further = tied(task.module)
    if model.path is None or all(weight_map.reads(it) for it in names if it not in further):
        return [last]
    from ..converters.maps.sources.modules import module_map
    from ..converters.maps.sources.torch_side import torch_side
    from ..converters.runtimes.pretrained import torch_config

    config, headers = torch_config(model), torch_side(model).arrays.checkpoint.headers
    there = module_map(config, headers, model.family.torch_class if model.family else "")
    return [(there.inverse(), config), last]


def _map(task: Task) -> Any:
    """Return the map of the task's model, or ``None`` where it has none."""
    if task.model is None or not (task.model.map_text or task.model.family):
        return None
    from ..converters.maps.sources.choose import map_of

    return map_of(task.model)


def _only_in_torch(task: Task) -> bool:
    """Return whether the task's model is a torch directory of which nothing is known in MLX."""
    model = task.model
    there = model is not None and model.path is not None and model.framework == "torch"
    return there and _map(task) is None


def tied(module: Any) -> dict[str, str]:
    """Return the further names of parameters of the torch MODULE that have several, each with the first.

    A head that is tied to the embeddings has the second name in a state dict, and no values of its own.
    """
    first: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        first.setdefault(id(parameter), name)
    every = module.named_parameters(remove_duplicate=False)
    return {name: first[id(it)] for name, it in every if first[id(it)] != name}


def _torch_weights(task: Task) -> dict[str, Array]:
    return {name: tensor.detach().numpy() for name, tensor in task.module.state_dict().items()}


def _headers(weights: Mapping[str, Array]) -> dict[str, Header]:
    return {name: Header(CODE[array.dtype], array.shape) for name, array in weights.items()}
