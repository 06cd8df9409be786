"""The census: every primitive of a traced graph, and those without a handler, before anything runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ....errors import UnsupportedError
from .graph import Graph, Node
from .operations.registry import handlers

RANDOM: Final = (
    "random numbers would be drawn once: call eval() first, or pass them to the module as an input"
)


@dataclass(frozen=True)
class Census:
    """What a graph consists of.

    Attributes:
        operations: primitive or composite -> how often it occurs.
        unsupported: what cannot run in torch, and why -> how often it occurs.
    """

    operations: Mapping[str, int]
    unsupported: Mapping[str, int] = field(default_factory=dict)

    def check(self) -> None:
        """Raise ``UnsupportedError`` with all that cannot run, and how often it occurs."""
        if not self.unsupported:
            return
        count = len(self.unsupported)
        raise UnsupportedError(
            f"{count} operation{'s' * (count != 1)} of MLX cannot run in torch",
            [f"{name}: {times} times" for name, times in sorted(self.unsupported.items())],
        )


def census_of(graph: Graph) -> Census:
    """Count the operations of GRAPH and find those that cannot run."""
    unsupported = Counter(why for node in graph.nodes if (why := _unsupported(node, graph)))
    return Census(Counter(node.op for node in graph.nodes), unsupported)


def _unsupported(node: Node, graph: Graph) -> str | None:
    """Return what about NODE cannot run."""
    if node.op == "RandomBits":
        return f"{node.op} ({RANDOM})"
    operation = handlers().get(node.op)
    if operation is None:
        return node.op
    shapes = [graph.shapes[value] for value in node.inputs]
    why = operation.refuses(node.arguments, shapes) if operation.refuses else None
    return f"{node.op} ({why})" if why else None
