"""Which tensors of a checkpoint make which weights of a class of transformers, one weight at a time.

``convert_and_load_state_dict_in_model`` gathers all that a rename or a conversion needs, then converts.
Here the same objects are gathered by name alone, and each converts when its weight is asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from ...checkpoints.base import Checkpoint
from ...common.arrays import to_torch
from ...common.dtypes import NUMPY
from ..pretrained import load_pretrained
from .weights import Weight, made, nothing, stored


@contextlib.contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Give the parameters of modules built meanwhile no memory; buffers are computed as ever."""
    kind: Any = nn.Module
    register = kind.register_parameter

    def without_memory(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None:
            parameter = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
            vars(parameter)["_is_hf_initialized"] = True  # transformers' own mark: draw no values
        register(module, name, parameter)

    kind.register_parameter = without_memory
    try:
        yield
    finally:
        kind.register_parameter = register


@dataclass
class Group:
    """Tensors of a checkpoint that make one or several weights together.

    Attributes:
        first: the weight by which it is found.
        converter: transformers' own; ``None`` where a tensor is only renamed.
        tensors: pattern that a name matched -> names, in their order.
        beside: weights made and not yet asked for.
    """

    first: str
    converter: Any
    tensors: dict[str, list[str]] = field(default_factory=dict)
    beside: dict[str, torch.Tensor] = field(default_factory=dict)

    def convert(
        self, module: Any, read: Callable[[str], Any], rows: slice = slice(None)
    ) -> dict[str, torch.Tensor]:
        """Return the weights that READ, a function from a tensor's name, leads to; ROWS of each list."""
        mapping = deepcopy(self.converter)
        for pattern, names in self.tensors.items():
            for name in names[rows]:
                mapping.add_tensor(self.first, name, pattern, partial(read, name))
        result = mapping.convert(self.first, model=module, config=module.config)
        return {name: it[0] if isinstance(it, list) else it for name, it in result.items()}


def groups_of(module: Any, names: Sequence[str]) -> dict[str, Group]:
    """Return the groups that tensors called NAMES make for MODULE, by first weight."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import (
        WeightConverter,
        WeightRenaming,
        dot_natural_key,
        rename_source_key,
    )

    changes = get_model_conversion_mapping(module)
    renamings = [it for it in changes if isinstance(it, WeightRenaming)]
    converters = [it for it in changes if isinstance(it, WeightConverter)]
    of_pattern = {pattern: it for it in converters for pattern in it.source_patterns}
    own, prefix = module.state_dict(), module.base_model_prefix
    groups: dict[str, Group] = {}
    for name in sorted(names, key=dot_natural_key):
        new, pattern = rename_source_key(name, renamings, converters, prefix, own)
        if new not in own and name in own:
            new, pattern = rename_source_key(name, [], [], prefix, own)
        if new in own:
            converter = of_pattern[pattern] if pattern else None
            group = groups.setdefault(new, Group(new, converter))
            group.tensors.setdefault(pattern or name, []).append(name)
    return groups


def weights_of(
    module: Any,
    checkpoint: Checkpoint,
    where: str,
    known: Sequence[str] = (),
    *,
    towers: bool = False,
) -> tuple[dict[str, Weight], dict[str, str | None]]:
    """Return where each weight of MODULE, its parameters without memory, comes from, and where each tensor is.

    Args:
        module: a model of transformers.
        checkpoint: its tensors, by the names of a torch checkpoint.
        where: whose they are, for messages.
        known: tensors that are passed over.
        towers: see ``load_pretrained``.

    Raises:
        MismatchError: a weight is missing, unexpected or of another shape; all are listed.
    """
    headers = {name: it for name, it in checkpoint.headers.items() if name not in known}
    outlines = {name: outline(checkpoint, name) for name in headers}
    buffers = dict(module.named_buffers())
    places = load_pretrained(module, outlines, where, towers=towers, device="meta")
    for name, buffer in buffers.items():  # those in the files are read, not left without values
        owner, _, leaf = name.rpartition(".")
        module.get_submodule(owner)._buffers[leaf] = buffer
    compute_unsaved(module)
    found: dict[str, Weight] = {}
    for group in groups_of(module, list(headers)).values():
        found |= weights_in(group, module, checkpoint, outlines)
    absent = module.state_dict().keys() - found.keys() - buffers.keys() if towers else set()
    shapes = {name: tuple(it.shape) for name, it in module.state_dict().items()}
    return {name: nothing(name, shapes[name]) for name in absent} | found, places


def compute_unsaved(module: Any) -> None:
    """Let MODULE, a model of transformers without memory, compute those weights that it never saves."""
    for name in module._keys_to_ignore_on_save & dict(module.named_parameters()).keys():
        owner, _, leaf = name.rpartition(".")
        holder = module.get_submodule(owner)
        there = torch.empty_like(holder._parameters[leaf], device="cpu")
        holder._parameters[leaf] = nn.Parameter(there, requires_grad=False)
        module._init_weights(holder)


def outline(checkpoint: Checkpoint, name: str) -> torch.Tensor:
    """Return a tensor without memory of the shape of tensor NAME, of whole numbers if that is."""
    header = checkpoint.headers[name]
    whole = NUMPY[header.dtype].kind in "iub"
    dtype = to_torch(np.empty(0, NUMPY[header.dtype])).dtype if whole else None
    return torch.empty(header.shape, dtype=dtype, device="meta")


def weights_in(
    group: Group, module: Any, checkpoint: Checkpoint, outlines: Mapping[str, torch.Tensor]
) -> dict[str, Weight]:
    """Return the weights that GROUP makes."""
    if group.converter is None:
        [[tensor]] = group.tensors.values()
        return {group.first: stored(group.first, checkpoint, tensor)}
    shapes = {name: tuple(it.shape) for name, it in group.convert(module, outlines.get).items()}

    def read(name: str) -> torch.Tensor:
        return to_torch(checkpoint.read(name))

    def whole(name: str) -> torch.Tensor:
        if name not in group.beside:
            group.beside = dict(group.convert(module, read))
        return group.beside.pop(name)

    weights = {name: made(name, shape, partial(whole, name)) for name, shape in shapes.items()}
    if len(shapes) == 1 and separable(group, module, outlines, shapes[group.first]):

        def rows(start: int, stop: int) -> torch.Tensor:
            return group.convert(module, read, slice(start, stop))[group.first]

        it = weights[group.first]
        weights[group.first] = Weight(it.name, it.shape, rows, it.whole, apart=True)
    return weights


def separable(
    group: Group, module: Any, outlines: Mapping[str, torch.Tensor], shape: tuple[int, ...]
) -> bool:
    """Say whether GROUP stacks what could as well be converted one by one, such as experts."""
    from transformers.core_model_loading import MergeModulelist

    stack, *others = group.converter.operations
    lengths = {len(names) for names in group.tensors.values()}
    if type(stack) is not MergeModulelist or stack.dim != 0 or lengths != {shape[0]}:
        return False
    inner = all(getattr(it, name, 1) not in (0, -len(shape)) for it in others for name in AXES)
    one = group.convert(module, outlines.get, slice(1))[group.first]
    return inner and tuple(one.shape) == (1, *shape[1:])


AXES = ("dim", "dim0", "dim1")  # what an operation of transformers calls its axes
