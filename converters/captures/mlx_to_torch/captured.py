"""A module of MLX that computes in torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ....errors import BadInputError
from .census import Census, census_of
from .dtypes import FLOATS, LARGEST, TORCH, WRAPPING, widened
from .graph import Graph, Node
from .limits import Limit
from .operations.registry import Call, handlers
from .sizes import Size, resolved

# Primitives that move numbers or choose among them.
EXACT: Final = frozenset(
    (
        *("Broadcast", "Reshape", "Flatten", "Unflatten", "Transpose", "Squeeze", "ExpandDims"),
        *("Concatenate", "Split", "Slice", "SliceUpdate", "Pad", "AsStrided", "AsType", "View"),
        *("Gather", "GatherAxis", "ScatterAxis", "DynamicSlice", "DynamicSliceUpdate"),
        *("MaskedScatter", "Sort", "Partition", "Full", "Number", "Arange", "Select", "Maximum"),
        *("Minimum", "Abs", "Negative", "Sign", "Ceil", "Floor", "Round", "Copy", "StopGradient"),
    )
)


@dataclass(frozen=True)
class Place:
    """Where a tensor that is returned is among the outputs."""

    number: int


class Ports(NamedTuple):
    """What a captured module takes and gives.

    Attributes:
        names: of the inputs that are tensors, in order.
        sizes: name of a size that varies -> input and axis that it is read from.
        returned: what is returned, tensors as their places among the outputs.
        limits: up to which sizes the module is the one that was recorded, by what is limited.
    """

    names: tuple[str, ...]
    sizes: Mapping[str, tuple[int, int]]
    returned: Any
    limits: Mapping[str, Limit] = {}

    def check(self, sizes: Mapping[str, int]) -> None:
        """Raise ``BadInputError`` where SIZES are beyond the limits."""
        for limit in self.limits.values():
            if (last := limit.passed(sizes)) is None:
                continue
            named = limit.measure.names
            there = "; ".join(
                f"{self.names[place]}: axis {axis} has the size {sizes[name]}"
                for name in named
                for place, axis in [self.sizes[name]]
            )
            way = "up to" if limit.measure.of(sizes) > last else "down to"
            by = "this size" if len(named) == 1 else str(limit.measure)
            such = f"that size, {sizes[named[0]]}" if len(named) == 1 else "these sizes"
            raise BadInputError(
                f"{there}, and the module was recorded as it computes {way} {last} (it decides by {by}):"
                f" record it with an example of {such}"
            )


class CapturedMlx(nn.Module):
    """A traced module of MLX; parameters have MLX's names, shapes and values.

    Call it with torch tensors, in order or by the names of MLX's ``__call__``. Integers may come in
    any width. Gradients, devices and ``state_dict`` are torch's own; packed codes of quantized
    weights are buffers.

    Attributes:
        rounded: of what each operation makes that rounds, instead of it, to see what other rounding does.
    """

    def __init__(
        self,
        graph: Graph,
        ports: Ports,
        tensors: Mapping[str, Tensor],
        constants: Mapping[int, Tensor],
    ) -> None:
        super().__init__()
        self.graph, self.ports = graph, ports
        self._places = {
            value: _attach(self, name, tensors[name]) for value, name in graph.parameters.items()
        }
        self._held = {value: f"constant_{value}" for value in constants}
        for value, tensor in constants.items():
            self.register_buffer(self._held[value], tensor, persistent=False)
        self._traced = _floating(self)
        self._steps = _steps(graph)
        self.rounded: Callable[[Tensor], Tensor] | None = None

    def census(self) -> Census:
        """Return how often each operation occurs."""
        return census_of(self.graph)

    def mlx_weights(self) -> list[tuple[str, Any]]:
        """Return the weights as ``load_weights`` of the MLX module takes them."""
        from ..torch_to_mlx.dtypes import to_mlx

        return [(name, to_mlx(tensor)) for name, tensor in self.state_dict().items()]

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return what the MLX module returns, in torch."""
        tensors = self._inputs(inputs, named)
        kinds = self._kinds()
        sizes = {
            name: tensors[place].shape[axis] for name, (place, axis) in self.ports.sizes.items()
        }
        self.ports.check(sizes)
        values = dict(zip(self.graph.inputs, tensors, strict=True))
        values |= {value: _held(owner, leaf) for value, (owner, leaf) in self._places.items()}
        values |= {value: getattr(self, name) for value, name in self._held.items()}
        for step in self._steps:
            step.run(values, sizes, kinds, self.rounded)
        made = [widened(values[value]) for value in self.graph.outputs]
        return pytree.tree_map(
            lambda it: made[it.number] if isinstance(it, Place) else it, self.ports.returned
        )

    def _kinds(self) -> Mapping[str, torch.dtype]:
        """Return the dtypes of torch by MLX's names: a module made ``double`` or ``half`` computes so."""
        now = _floating(self)
        return TORCH if now in (None, self._traced) else TORCH | dict.fromkeys(FLOATS, now)

    def _inputs(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> list[Tensor]:
        given = {**dict(zip(self.ports.names, inputs, strict=False)), **named}
        if len(inputs) + len(named) != len(self.ports.names) or given.keys() != set(
            self.ports.names
        ):
            wanted, found = ", ".join(self.ports.names), ", ".join(given) or "nothing"
            raise BadInputError(f"the module takes {wanted}; it was called with {found}")
        return [
            self._input(value, name, torch.as_tensor(given[name]))
            for value, name in zip(self.graph.inputs, self.ports.names, strict=True)
        ]

    def _input(self, value: int, name: str, tensor: Tensor) -> Tensor:
        """Return TENSOR in the dtype that was traced; sizes that were fixed have to be the same."""
        shape = self.graph.shapes[value]
        fixed = [
            (size, found)
            for size, found in zip(shape, tensor.shape, strict=False)
            if not isinstance(size, Size)
        ]
        if len(shape) != tensor.ndim or any(size != found for size, found in fixed):
            wanted = ", ".join("any" if isinstance(size, Size) else str(size) for size in shape)
            raise BadInputError(
                f"{name}: expected the shape [{wanted}], found {list(tensor.shape)}"
            )
        return tensor.to(self._kinds()[self.graph.dtypes[value]])


def _floating(module: nn.Module) -> torch.dtype | None:
    """Return the dtype of the first parameter or buffer of MODULE in floating point."""
    held = (*module.parameters(), *module.buffers())
    return next((it.dtype for it in held if it.is_floating_point()), None)


def _attach(root: nn.Module, name: str, tensor: Tensor) -> tuple[nn.Module, str]:
    """Put TENSOR into ROOT as NAME, below modules of its own; return where it lies."""
    *parents, leaf = name.split(".")
    owner = root
    for parent in parents:
        owner = owner._modules.setdefault(parent, nn.Module())  # type: ignore[assignment]
    if isinstance(tensor, nn.Parameter):
        owner._parameters[leaf] = tensor
    else:
        owner._buffers[leaf] = tensor
    return owner, leaf


def _held(owner: nn.Module, leaf: str) -> Tensor:
    held: Any = owner._parameters.get(leaf)
    return owner._buffers[leaf] if held is None else held  # type: ignore[return-value]


class _Step(NamedTuple):
    """A node, and what is known of its values before it runs."""

    node: Node
    shapes: Sequence[Sequence[Any]]
    dtypes: Sequence[str]
    observed: Mapping[int, Mapping[int, str]]
    used: Sequence[bool]
    last: Sequence[int]  # values that nothing reads after it

    def run(
        self,
        values: dict[int, Tensor],
        sizes: dict[str, Any],
        kinds: Mapping[str, torch.dtype],
        rounded: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """Compute the node from VALUES, into them, and forget what is not read again."""
        operation = handlers()[self.node.op]
        inputs = [values[value] for value in self.node.inputs]
        call = Call(
            inputs if operation.raw else [widened(it) for it in inputs],
            resolved(self.node.arguments, sizes),
            [resolved(shape, sizes | _later(shape, sizes)) for shape in self.shapes],
            [kinds[dtype] for dtype in self.dtypes],
            self.used,
        )
        made = operation.handler(call)
        listed = [made] if isinstance(made, Tensor) else made
        for value, tensor, dtype in zip(self.node.outputs, listed, self.dtypes, strict=False):
            if tensor is not None:
                made = tensor.to(kinds[dtype])
                if rounded and self.node.op not in EXACT and made.is_floating_point():
                    made = rounded(made)
                wraps = self.node.op in WRAPPING and dtype in LARGEST
                values[value] = made & LARGEST[dtype] if wraps else made
                for axis, name in self.observed.get(value, {}).items():
                    sizes[name] = tensor.shape[axis]
        for value in self.last:
            values.pop(value, None)


def _later(shape: Sequence[Any], sizes: Mapping[str, Any]) -> dict[str, int]:
    """Return -1 for every size of SHAPE that only what is computed will tell."""
    named = [
        name
        for size in shape
        if isinstance(size, Size)
        for _, names in size.terms
        for name in names
    ]
    return {name: -1 for name in named if name not in sizes}


def _steps(graph: Graph) -> list[_Step]:
    """Return the nodes of GRAPH with what is known of their values."""
    uses = graph.uses()
    last: dict[int, int] = {}
    for place, node in enumerate(graph.nodes):
        last |= dict.fromkeys(node.inputs, place)
    kept = {*graph.outputs}
    ending: dict[int, list[int]] = {}
    for value, place in last.items():
        if value not in kept:
            ending.setdefault(place, []).append(value)
    return [
        _Step(
            node,
            [graph.shapes[value] for value in node.outputs],
            [graph.dtypes[value] for value in node.outputs],
            {value: graph.observed[value] for value in node.outputs if value in graph.observed},
            [value in uses for value in node.outputs],
            ending.get(place, []),
        )
        for place, node in enumerate(graph.nodes)
    ]
