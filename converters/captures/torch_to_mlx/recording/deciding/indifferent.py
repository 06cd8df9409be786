"""What a module chooses by sizes, tried at sizes that choose otherwise: where these give what is recorded, nothing is refused.

Code asks whether it must pad, whether there is more than one token, or whether a mask is worth making; what follows is
often the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Final

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree
from torch.utils._sympy.numbers import int_oo

from ..arguments import leaves, mapped
from ..sources import input_names, user_inputs, writes
from .asked import Tree, holds
from .replayed import replayed

_TRIES: Final = 6  # sizes that a module is called with
_ENOUGH: Final = 2  # of them for one choice

Places = dict[str, dict[int, tuple[Any, int]]]  # input -> axis -> symbol, how many times it


def without_indifferent(
    program: ExportedProgram,
    module: torch.nn.Module,
    tensors: Mapping[str, Any],
    conditions: Mapping[Tree, str],
    choices: Collection[Tree],
) -> dict[Tree, str]:
    """Return CONDITIONS of PROGRAM, recorded of MODULE with TENSORS, less those of CHOICES that make no difference."""
    if not choices or any(spec.kind.name == "BUFFER_MUTATION" for spec in _outputs(program)):
        return dict(conditions)
    trial = _Trial(program, module, tensors, dict(conditions))
    free = {each for each in choices if trial.makes_no_difference(each, choices)}
    return {each: line for each, line in conditions.items() if each not in free}


def _outputs(program: ExportedProgram) -> Any:
    return program.graph_signature.output_specs


@dataclass
class _Trial:
    """A module and its recording, called with other sizes than the example's."""

    program: ExportedProgram
    module: torch.nn.Module
    tensors: Mapping[str, Any]
    conditions: Mapping[Tree, str]
    tried: dict[tuple[tuple[str, int], ...], bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Find which axes vary, and how long they are."""
        nodes = {node.name: node.meta.get("val") for node in self.program.graph.nodes}
        values = map(nodes.get, user_inputs(self.program))
        self.places = {
            name: _places(value)
            for name, value in zip(input_names(self.program), values, strict=True)
            if isinstance(value, torch.Tensor)
        }
        given = leaves(self.tensors)
        self.sizes = {
            str(symbol): given[name].shape[axis] // times
            for name, axes in self.places.items()
            for axis, (symbol, times) in axes.items()
        }

    @cached_property
    def weights(self) -> dict[str, torch.Tensor]:
        """Parameters of one number alone, as a gate of 0 that hides what it gates until it is trained: others for them."""
        made: dict[str, torch.Tensor] = _seeded(lambda: _varied(self.module))
        return made

    def makes_no_difference(self, choice: Tree, choices: Collection[Tree]) -> bool:
        """Tell whether sizes that choose otherwise than CHOICE give what is recorded."""
        found = [
            sizes
            for symbol in _names(choice)
            for sizes in self._others(symbol, choice)
            if all(it in choices or holds({it: ""}, sizes) == [] for it in self.conditions)
        ]
        return bool(found) and all(map(self._agrees, found))

    def _others(self, symbol: str, choice: Tree) -> Iterator[dict[str, int]]:
        """Yield the nearest sizes on both sides, and the farthest above, where SYMBOL chooses otherwise."""
        size, count = self.sizes[symbol], 0
        for other in (*range(size - 1, 0, -1), None, *range(size + 1, 2 * size + 1)):
            sizes = {**self.sizes, symbol: other or size}
            if other is None:
                count = 0
            elif count < _ENOUGH and self._allowed(symbol, other) and holds({choice: ""}, sizes):
                count += 1
                yield sizes

    def _allowed(self, symbol: str, size: int) -> bool:
        bounds = {str(it): bound for it, bound in self.program.range_constraints.items()}
        bound = bounds.get(symbol)
        upper = None if bound is None or bound.upper in (int_oo, float("inf")) else bound.upper
        lower = 1 if bound is None or bound.lower <= 2 else bound.lower
        return bool(lower <= size) and (upper is None or bool(size <= upper))

    def _agrees(self, sizes: Mapping[str, int]) -> bool:
        key = tuple(sorted(sizes.items()))
        if key not in self.tried:
            self.tried[key] = len(self.tried) < _TRIES and self._alike(sizes)
        return self.tried[key]

    def _alike(self, sizes: Mapping[str, int]) -> bool:
        """Tell whether module and recording give the same for SIZES; not where either fails."""
        inputs = mapped(lambda name, value: self._resized(name, value, sizes), self.tensors)
        try:
            call = partial(torch.func.functional_call, self.module, self.weights, (), inputs)
            wanted = _seeded(call)
            found = _seeded(lambda: self._recorded(inputs))
            return all(_close(*pair) for pair in zip(found, _tensors(wanted), strict=True))
        except Exception:  # a module says in any way that it does not take these
            return False

    def _resized(self, name: str, value: Any, sizes: Mapping[str, int]) -> Any:
        for axis, (symbol, times) in self.places.get(name, {}).items():
            count = torch.arange(times * sizes[str(symbol)]) % value.shape[axis]
            value = value.index_select(axis, count)
        return value

    def _recorded(self, inputs: Mapping[str, Any]) -> list[torch.Tensor]:
        """Return the tensors that the recording gives for INPUTS."""
        state = {**self.program.state_dict, **self.weights}
        outputs = replayed(self.program, leaves(inputs), state)
        return _tensors(outputs[len(writes(self.program)) :])


def _varied(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    made: dict[int, torch.Tensor] = {}
    for value in module.parameters():
        if (
            value.is_floating_point()
            and value.numel()
            and bool((value == value.flatten()[0]).all())
        ):
            made[id(value)] = 1 + 0.1 * torch.randn_like(value)
    names = module.named_parameters(remove_duplicate=False)
    return {name: made[id(value)] for name, value in names if id(value) in made}


def _places(value: torch.Tensor) -> dict[int, tuple[Any, int]]:
    """Return axis of VALUE -> its symbol, and how many times that it is long."""
    found: dict[int, tuple[Any, int]] = {}
    sizes: Any = value.shape
    for axis, size in enumerate(sizes):
        if isinstance(size, torch.SymInt) and size.node.expr.free_symbols:
            times, symbol = size.node.expr.as_coeff_Mul()
            found[axis] = (symbol, int(times))
    return found


def _names(condition: Tree) -> set[str]:
    if isinstance(condition, str):
        return {condition}
    return set().union(*map(_names, condition[1:])) if isinstance(condition, tuple) else set[str]()


def _seeded(call: Any) -> Any:
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return call()


def _tensors(value: Any) -> list[torch.Tensor]:
    return [it for it in pytree.tree_leaves(value) if isinstance(it, torch.Tensor)]


def _close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return found.shape == wanted.shape and torch.allclose(found, wanted, 1e-4, 1e-5, equal_nan=True)
