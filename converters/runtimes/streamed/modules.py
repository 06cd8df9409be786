"""PyTorch modules whose weights stay on disk until an operation takes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ...checkpoints.base import Checkpoint
from ...common.policy import Policy
from ...models import Model
from .. import torch as whole
from ..fitting import require_fitting
from ..pretrained import places as places_in
from ..torch_adapters import Places, attach_adapter
from .pretrained import parameters_on_meta, weights_of
from .readings import Readings
from .tensors import FileTensor
from .together import READINGS
from .weights import Weight, nbytes, stored


def in_memory(model: Model) -> bool:
    """Say whether the weights of MODEL, a factory's, are in memory already."""
    return model.path is None


def loaded_names(model: Model, names: Iterable[str]) -> dict[str, str]:
    """Return the weight of its class that each of NAMES, tensors of MODEL's files, is loaded into."""
    if model.path is None or model.factory is not None or model.framework != "torch":
        return {}
    with parameters_on_meta():
        module = whole.empty_module(model)
    return {name: new for name, new in places_in(module, names).items() if new}


def open_module(model: Model, dtype: str = "float32") -> nn.Module:
    """Return MODEL as ``build_module`` does, its weights on disk where that is possible."""
    return opened(model, dtype)[0]


def torch_runner(model: Model, policy: Policy) -> whole.TorchRunner:
    """Return MODEL ready to run in PyTorch."""
    return whole.TorchRunner(model, policy, open_module(model, policy.parameter_dtype))


def opened(model: Model, dtype: str = "float32") -> tuple[nn.Module, Places]:
    """Return what ``open_module`` does, and which of its weights each torch tensor is in."""
    module, updates, places = bare_module(model, dtype)
    attach_adapter(module, updates)
    return module, places


def bare_module(model: Model, dtype: str = "float32") -> whole.Bare:
    """Return what ``bare`` does, weights on disk where that is possible.

    Args:
        model: in PyTorch's or MLX's layout, or a factory's.
        dtype: of the computation.

    Raises:
        MismatchError: its files do not fit its class; everything is listed.
    """
    if in_memory(model):
        return whole.bare(model, dtype)
    with parameters_on_meta():
        module = whole.empty_module(model)
    side = whole.torch_side(model)
    whole.drop_absent(module, side.arrays, model.family.optional if model.family else ())
    if model.factory is not None:
        weights, places = by_name(module, side.arrays.checkpoint, model.spec, side.recomputed)
    else:
        towers = model.framework == "mlx" and not (model.family and model.family.map)
        weights, places = weights_of(
            module, side.arrays.checkpoint, model.spec, side.recomputed, towers=towers
        )
        places = dict.fromkeys(side.recomputed) | places
    put(module, weights, whole.DTYPES[dtype])
    return whole.Bare(module, whole.updates_of(module, model, side, places), places)


def by_name(
    module: nn.Module, checkpoint: Checkpoint, where: str, known: Sequence[str]
) -> tuple[dict[str, Weight], dict[str, str | None]]:
    """Return what ``weights_of`` does for a MODULE of a user's, whose names are the tensors'."""
    require_fitting(module, checkpoint.headers, where=where, known=known)
    own = module.state_dict()
    names = [name for name in checkpoint.headers if name in own]
    places = {name: name if name in own else None for name in checkpoint.headers}
    return {name: stored(name, checkpoint, name) for name in names}, places


def put(module: nn.Module, weights: Mapping[str, Weight], dtype: torch.dtype) -> None:
    """Put WEIGHTS into the places of MODULE's parameters; buffers are read now.

    Parameters that are one stay one. Those that no file has keep their values.
    """
    made: dict[int, FileTensor] = {}
    parameters = dict(module.named_parameters(remove_duplicate=False))
    readings = Readings(sum(nbytes(it.shape, dtype) for it in module.parameters()))
    sources = {id(parameters[name]): it for name, it in weights.items() if name in parameters}
    for number, (path, parameter) in enumerate(parameters.items()):
        owner, _, leaf = path.rpartition(".")
        holder: Any = module.get_submodule(owner)
        if id(parameter) in sources:
            kind = dtype if parameter.is_floating_point() else parameter.dtype
            fresh = FileTensor(sources[id(parameter)], kind, readings, number)
            holder._parameters[leaf] = made.setdefault(id(parameter), fresh)
        else:
            parameter.data = parameter.data.to(dtype)
            parameter.requires_grad = False
    for path, buffer in list(module.named_buffers(remove_duplicate=False)):
        owner, _, leaf = path.rpartition(".")
        holder = module.get_submodule(owner)
        value = weights[path].whole() if path in weights else buffer
        computed = leaf in holder._non_persistent_buffers_set  # stays as it is, see ``whole.cast``
        if buffer.is_floating_point() and not (computed and dtype.itemsize == 2):
            value = value.to(dtype)
        holder._buffers[leaf] = value
    vars(module)[READINGS] = readings


def tensors_of(module: nn.Module) -> dict[str, FileTensor]:
    """Return the parameters of MODULE that are on disk, each once."""
    return {name: it for name, it in module.named_parameters() if isinstance(it, FileTensor)}
