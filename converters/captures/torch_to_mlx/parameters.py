"""Parameters by torch's names: a tree of MLX modules and lists, tied tensors stored once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import mlx.core as mx
import torch
from mlx import nn

from ....errors import UnsupportedError


class Tensor(NamedTuple):
    """A parameter or buffer: its value, and whether training may change it."""

    array: mx.array
    trainable: bool


class Branch(nn.Module):
    """A submodule's place in the tree; what torch does not train stays frozen for good."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._fixed: frozenset[str] = frozenset()
        self._quantizer: Quantizer | None = None

    @staticmethod
    def valid_parameter_filter(module: nn.Module, key: str, value: Any) -> bool:  # noqa: ARG004
        """Take every array for a parameter, whatever its name: MLX hides those that begin with ``_``."""
        return isinstance(value, dict | list | mx.array)

    @staticmethod
    def trainable_parameter_filter(module: nn.Module, key: str, value: Any) -> bool:
        """Take what is not frozen."""
        return Branch.valid_parameter_filter(module, key, value) and key not in module._no_grad

    def apply(self, map_fn: Callable[[mx.array], mx.array], filter_fn: Any = None) -> nn.Module:
        """Map all parameters, or those of FILTER_FN (see ``mlx.nn.Module.apply``)."""
        return super().apply(map_fn, filter_fn or self.valid_parameter_filter)

    def hold(self, key: str, trainable: bool) -> None:
        """Make KEY trainable, or freeze it now and after every ``unfreeze``."""
        if trainable:
            self._no_grad.discard(key)
        else:
            self._fixed |= {key}
            self._no_grad.add(key)

    def unfreeze(self, *args: Any, **kwargs: Any) -> Branch:
        """Unfreeze what is not fixed, here and below (see ``mlx.nn.Module.unfreeze``)."""
        super().unfreeze(*args, **kwargs)
        for branch in self.modules():  # type: ignore[no-untyped-call]
            if isinstance(branch, Branch):
                branch._no_grad |= branch._fixed
        return self

    @property
    def to_quantized(self) -> Callable[..., Branch]:
        """What ``mlx.nn.quantize`` calls; only there where a weight of this module can be quantized."""
        found = self._quantizer(self) if self._quantizer else None
        if found is None:
            raise AttributeError("nothing in this module can be quantized")
        return found


Quantizer = Callable[[Branch], "Callable[..., Branch] | None"]


class Location(NamedTuple):
    """Where an array lives.

    Attributes:
        holder: a branch or a list.
        key: in it.
        branch: the branch that says whether it is trained.
        path: under which it says so.
    """

    holder: Any
    key: Any
    branch: Branch
    path: str

    def get(self) -> mx.array:
        """Return the array."""
        array: mx.array = self.holder[self.key]
        return array

    def set(self, array: mx.array) -> None:
        """Replace the array."""
        self.holder[self.key] = array

    @property
    def fixed(self) -> bool:
        """Whether no training may ever change it."""
        return self.path in self.branch._fixed


def _enter(holder: Any, key: str, make: Callable[[], Any]) -> Any:
    """Return what is at KEY of a branch or list, made if there is nothing."""
    place = _place(holder, key)
    present = holder[place] if isinstance(holder, list) else holder.get(place)
    if present is None or type(present) is dict:  # a gap; an empty branch is a dictionary, too
        holder[place] = make()
    return holder[place]


def _place(holder: Any, key: str) -> Any:
    """Return KEY as HOLDER counts; a list grows to have it, with gaps where there are no parameters."""
    if not isinstance(holder, list):
        return key
    if not key.isdigit():
        raise UnsupportedError(
            f"a module has both numbered children and one called {key!r}: rename it"
        )
    holder.extend({} for _ in range(int(key) + 1 - len(holder)))
    return int(key)


def plant(root: Branch, name: str, tensor: Tensor) -> Location:
    """Store TENSOR under ROOT where ``tree_flatten`` calls it NAME; numbered children make a list."""
    holder: Any = root
    branch, path = root, ""
    parts = name.split(".")
    for key, following in pairwise(parts):
        holder = _enter(holder, key, list if following.isdigit() else Branch)
        branch, path = (holder, "") if isinstance(holder, Branch) else (branch, f"{path}{key}.")
    place = _place(holder, parts[-1])
    holder[place] = tensor.array
    branch.hold(path + parts[-1], tensor.trainable)
    return Location(holder, place, branch, path + parts[-1])


def canonical_names(state: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return name -> first name of the same memory: tied weights are one tensor, with one gradient."""
    first: dict[tuple[Any, ...], str] = {}
    names = {}
    for name, tensor in state.items():
        memory = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        names[name] = first.setdefault(memory, name) if tensor.numel() else name
    return names
