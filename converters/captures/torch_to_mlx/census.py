"""The census: every operation of a recorded graph, and those without a handler, before anything runs."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._pytree import tree_leaves

from ....errors import UnsupportedError, legible
from .dispatch import overload, refused_arguments, schema_arguments
from .dtypes import ABSENT
from .operations.registry import SIZES, handlers
from .recording.autograd.lifting import META, Lifted
from .recording.chosen.editing import TAKES_ROWS
from .recording.places import line_of_node
from .recording.strides import lies_in_order
from .sites import module_path, sites_of

# Higher-order operations whose body is a graph of its own -> the position of that graph.
WRAPPERS: Final = {"wrap_with_autocast": 4}

_BY_VALUES: Final = ("depends on values", "as many rows as values say", "aten.nonzero", TAKES_ROWS)
_CURE: Final = (
    "cure: rows that a mask chooses can be computed one by one and then summed, averaged, given to a loss, "
    "or written back by the same mask; for all else keep every row, as in torch.where(mask, x, 0)"
)
_LONGEST: Final = 120  # characters of a line of code


@dataclass(frozen=True)
class Census:
    """What a graph consists of.

    Attributes:
        operations: operation -> how often it occurs.
        unsupported: operation, with what about it is unsupported -> module path per occurrence.
        lines: the same -> the line of code that it was first recorded from, where that is known.
    """

    operations: Mapping[str, int]
    unsupported: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lines: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raise ``UnsupportedError`` with the unsupported operations, their counts and places."""
        if not self.unsupported:
            return
        summary = (
            f"{len(self.unsupported)} operation{'s' * (len(self.unsupported) != 1)} cannot run in MLX: "
            "change the modules named, or add a handler (converters/captures/torch_to_mlx/operations)"
        )
        counts = sorted(
            self.unsupported.items(), key=lambda it: (TAKES_ROWS not in it[0], -len(it[1]))
        )
        lines = [
            f"{name}: {len(paths)} in {_places(paths)}{self._line(name)}" for name, paths in counts
        ]
        by_values = any(reason in name for name in self.unsupported for reason in _BY_VALUES)
        raise UnsupportedError(summary, [*lines, _CURE] if by_values else lines)

    def _line(self, name: str) -> str:
        line = self.lines.get(name)
        return f", at {legible(line, _LONGEST)}" if line else ""


def _places(paths: tuple[str, ...], shown: int = 3) -> str:
    """Name the first few different module paths."""
    names = list(dict.fromkeys(path or "the module itself" for path in paths))
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def live_nodes(graph: torch.fx.Graph) -> list[Node]:
    """Return the nodes that reach an output, the graph's or one marked as a submodule's, in order.

    Assertions and dead code are not among them.
    """
    reached: set[Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or node in reached or sites_of(node):
            reached.add(node)
            reached.update(node.all_input_nodes)
    return [node for node in graph.nodes if node in reached]


def body_of(node: Node, module: GraphModule) -> GraphModule | None:
    """Return the graph that a higher-order NODE wraps, if it is one that can run."""
    position = WRAPPERS.get(str(node.target))
    if position is None:
        return None
    body: Any = node.args[position]
    return cast(GraphModule, module.get_submodule(body.target))


def bodies_of(node: Node, module: GraphModule) -> list[GraphModule]:
    """Return the graphs that run where NODE does: one that it wraps, or both of a Function."""
    body = body_of(node, module)
    lifted: Lifted | None = node.meta.get(META)
    programs = () if lifted is None else (lifted.forward, lifted.backward)
    return [*([] if body is None else [body]), *(program.graph_module for program in programs)]


def _plain(target: Any) -> bool:
    """Tell whether TARGET is Python arithmetic on sizes."""
    module = getattr(target, "__module__", "")
    return (
        target is operator.getitem
        or module in ("_operator", "math", "builtins")
        or (module == "torch" and getattr(target, "__name__", "").startswith("sym_"))
    )


def _unsupported(node: Node) -> str | None:
    """Return what about NODE is unsupported."""
    name = overload(node)
    if not isinstance(node.target, torch._ops.OpOverload):
        return None if _plain(node.target) else name
    if name in SIZES:
        return None
    if node.meta.get(TAKES_ROWS) and any(map(_is_open, node.all_input_nodes)):
        return f"{name} ({TAKES_ROWS})"
    operation = handlers().get(name)
    return name if operation is None else _unsupported_here(node, name, operation)


def _unsupported_here(node: Node, name: str, operation: Any) -> str | None:
    """Return what about NODE, of an OPERATION that has a handler, is unsupported."""
    refused = refused_arguments(node, operation)
    if refused:
        return f"{name}({', '.join(f'{key}={value}' for key, value in refused.items())})"
    if name == "aten.as_strided.default" and not lies_in_order(
        schema_arguments(node)["self"].meta["val"]
    ):
        return f"{name} (of a part of a tensor, or of one that was expanded)"
    value = node.meta.get("val")
    why = _unheld(value) if isinstance(value, torch.Tensor) else None
    if name == "aten.index.Tensor" and any(map(_is_mask, schema_arguments(node)["indices"])):
        why = why or "as many rows as values say"
    return f"{name} ({why})" if why else None


def _is_open(node: Node) -> bool:
    """Tell whether the size of NODE depends on values, and was not fixed."""
    values = tree_leaves(node.meta.get("val"))
    return any(free_unbacked_symbols(x) for x in values if x is not None)


def _is_mask(index: Any) -> bool:
    return isinstance(index, Node) and index.meta["val"].dtype == torch.bool


def _unheld(value: torch.Tensor) -> str | None:
    """Return why MLX cannot hold VALUE, as torch recorded it."""
    if free_unbacked_symbols(value):
        return "its shape depends on values"
    return f"MLX has no {value.dtype}" if value.dtype in ABSENT else None


def _calls(module: GraphModule) -> Iterator[Node]:
    """Yield the calls of a graph and of the graphs it wraps."""
    for node in live_nodes(module.graph):
        if node.op == "call_function":
            bodies = bodies_of(node, module)
            for body in bodies:
                yield from _calls(body)
            if not bodies:
                yield node


def census_of(module: GraphModule) -> Census:
    """Count the operations of a graph and find those that cannot run."""
    nodes = list(_calls(module))
    unsupported: dict[str, list[str]] = {}
    lines: dict[str, str] = {}
    for node in nodes:
        reason = _unsupported(node)
        if reason is not None:
            unsupported.setdefault(reason, []).append(module_path(node))
            lines.setdefault(reason, line_of_node(node))
    calls = (overload(node) for node in nodes if isinstance(node.target, torch._ops.OpOverload))
    places = {name: tuple(paths) for name, paths in unsupported.items()}
    return Census(Counter(calls), places, lines)
