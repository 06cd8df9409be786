"""The graph of a traced function: primitives in order, values by number, nothing of MLX in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Shape = tuple[Any, ...]  # whole numbers and Sizes


class Node(NamedTuple):
    """One primitive.

    Attributes:
        op: its name in MLX, or that of a composite.
        arguments: what it was called with besides arrays: numbers, Sizes, texts, lists of these.
        inputs: values it reads.
        outputs: values it makes.
    """

    op: str
    arguments: Sequence[Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Graph:
    """A function as primitives.

    Attributes:
        inputs: values of the arguments, in order.
        parameters: value -> name of the parameter that it is.
        constants: value -> the array that it is.
        nodes: in an order in which they can run.
        outputs: values that are returned.
        shapes: value -> its shape.
        dtypes: value -> its dtype, as MLX calls it.
        observed: value -> axis -> name of that size, where others are computed from it.
    """

    inputs: tuple[int, ...]
    parameters: Mapping[int, str]
    constants: Mapping[int, Any]
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    shapes: Mapping[int, Shape]
    dtypes: Mapping[int, str]
    observed: Mapping[int, Mapping[int, str]]

    def uses(self) -> dict[int, int]:
        """Return how often each value is read, by nodes and as an output."""
        found: dict[int, int] = {}
        for value in (*(it for node in self.nodes for it in node.inputs), *self.outputs):
            found[value] = found.get(value, 0) + 1
        return found
