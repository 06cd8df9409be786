"""A recorded graph that calls are put into, and what its nodes are."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree

from ...drawing import is_drawn

ATEN: Final = torch.ops.aten
TAKES_ROWS: Final = "takes rows that a mask chooses"  # in the meta of what does, and cannot


@dataclass(frozen=True)
class Rows:
    """Rows of which a mask chooses some: all of them along the first axis, and the mask, which has no other."""

    whole: Node
    mask: Node


@dataclass
class Editor:
    """Puts calls into the graph of a program, where that inserts."""

    program: ExportedProgram

    def call(self, near: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
        """Return a new call of TARGET, which belongs to what NEAR belongs to."""
        made: Node = self.program.graph.call_function(target, args, kwargs)
        made.meta = {k: v for k, v in near.meta.items() if k in ("nn_module_stack", "stack_trace")}
        values = pytree.tree_map(
            lambda x: x.meta["val"] if isinstance(x, Node) else x, (args, kwargs)
        )
        tensor = next(x for x in (near, *near.all_input_nodes) if _mode(x) is not None)
        with _mode(tensor):
            made.meta["val"] = target(*values[0], **values[1])
        return made

    def shaped(self, near: Node, x: Node, shape: list[Any]) -> Node:
        """Return X in SHAPE."""
        made = self.call(near, ATEN.reshape.default, x, shape)
        made.target = ATEN.view.default  # as recorded programs call it, however X lies in memory
        return made

    def sizes(self, near: Node, x: Node) -> list[Any]:
        """Return the sizes of X: numbers, or nodes where they vary."""
        return [
            size if isinstance(size, int) else self.call(near, ATEN.sym_size.int, x, axis)
            for axis, size in enumerate(shape_of(x))
        ]

    def product(self, near: Node, sizes: list[Any]) -> Any:
        """Return the product of SIZES, numbers or nodes."""

        def times(a: Any, b: Any) -> Any:
            nodes = isinstance(a, Node) or isinstance(b, Node)
            return self.call(near, operator.mul, a, b) if nodes else a * b

        return reduce(times, sizes, 1)

    def flat(self, near: Node, x: Node, axes: int) -> Node:
        """Return X with its first AXES as one."""
        return x if axes == 1 else self.shaped(near, x, [-1, *self.sizes(near, x)[axes:]])

    def filled(self, near: Node, rows: Rows, other: Any) -> Node:
        """Return ROWS with OTHER where the mask hides them."""
        rest = [1] * (len(shape_of(rows.whole)) - 1)
        wide = self.shaped(near, rows.mask, [-1, *rest]) if rest else rows.mask
        target = ATEN.where.self if isinstance(other, Node) else ATEN.where.ScalarOther
        return self.call(near, target, wide, rows.whole, other)


def _mode(node: Node) -> Any:
    values = pytree.tree_leaves(node.meta.get("val"))
    return next((mode for x in values if (mode := getattr(x, "fake_mode", None)) is not None), None)


def shape_of(node: Node) -> Any:
    """Return the shape of NODE as it was recorded."""
    return node.meta["val"].shape


def spelled(node: Any) -> str:
    """Return how a mask is computed, a few steps back: two that are spelled alike are equal."""

    def each(node: Any, steps: int) -> str:
        if node.op != "call_function" or is_drawn(node.target) or not steps:
            return str(node.name)
        taken = torch.fx.node.map_arg((node.args, node.kwargs), lambda one: each(one, steps - 1))
        return f"{node.target}{taken}"

    return each(node, 4)


def key_of(mask: Any) -> str:
    """Return how a mask is computed, whatever its shape: those of one key choose as many rows, in one order."""
    while mask.target in (ATEN.view.default, ATEN.reshape.default):
        mask = mask.args[0]
    return spelled(mask)
