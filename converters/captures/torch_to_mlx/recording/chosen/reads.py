"""Reads by a mask, ``x[mask]``: computed on all rows, and chosen where they are joined or written back.

How many rows a mask chooses depends on values, which no recorded graph can hold. Where what follows works
row by row, and ends in a sum, a mean, a loss, a sum by places or a write to the same mask, all rows can be computed. Those that
the mask hides hold the first that it shows, so that nothing singular is computed that the module would not; where
it shows none, 0.5, at which few functions are singular.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

from ..blocks import replace
from .editing import ATEN, TAKES_ROWS, Editor, Rows, key_of, shape_of
from .joining import Joining
from .places import mask_of, masks_for_places, places
from .trying import is_by_row

_ARITHMETIC: Final = {
    operator.add: ATEN.add.Tensor,
    operator.sub: ATEN.sub.Tensor,
    operator.mul: ATEN.mul.Tensor,
    operator.truediv: ATEN.div.Tensor,
}


def keep_reads_whole(program: ExportedProgram) -> None:
    """Rewrite the reads by masks of PROGRAM that can be; the census names the others."""
    masks_for_places(program)
    rewrite = _Reads(program)
    for node in list(program.graph.nodes):
        if node.op == "call_function":
            rewrite.visit(node)


@dataclass
class _Reads(Editor):
    """Nodes of a graph that stand for chosen rows, and what to do with those that use them.

    Attributes:
        rows: node -> what it stands for; where it gives several tensors, a list.
        sizes: node that is a number of chosen rows -> the mask that chooses them.
        numbers: node that is computed from such a number -> a tensor that is it.
        masks: how a mask is computed -> the mask, as it lies and flat.
    """

    rows: dict[Any, Rows] = field(default_factory=dict)
    sizes_of: dict[Any, Node] = field(default_factory=dict)
    numbers: dict[Any, Node] = field(default_factory=dict)
    masks: dict[str, tuple[Node, Node]] = field(default_factory=dict)

    def visit(self, node: Any) -> None:
        """Note NODE if it chooses or keeps rows; replace it where these are joined again."""
        with self.program.graph.inserting_before(node):
            if node.target in (ATEN.nonzero.default, ATEN.where.default):
                self._found(node)
            elif node.target in (ATEN.index.Tensor, ATEN.masked_select.default) and self._by_mask(
                node
            ):
                self._read(node)
            elif node.target is ATEN.sym_size.int and node.args[0] in self.rows:
                if node.args[1] == 0:
                    self._counted(node)
            elif node.target in _ARITHMETIC and any(x in self.numbers for x in node.args):
                self._calculated(node)
            elif any(x in self.rows or x in self.numbers for x in node.all_input_nodes):
                self._used(node)

    def _by_mask(self, node: Any) -> bool:
        """Tell whether NODE reads by one mask that is not made of chosen rows."""
        chosen = node.args[1]
        chosen = chosen if isinstance(chosen, list | tuple) else [chosen]
        mask = chosen[0]
        alone = len(chosen) == 1 and mask is not None and mask not in self.rows
        return alone and mask.meta["val"].dtype == torch.bool

    def _flat(self, near: Node, mask: Node) -> tuple[Node, Node]:
        """Return the first mask that is computed as MASK is, and it flat."""
        key = key_of(mask)
        if key not in self.masks:
            self.masks[key] = mask, self.flat(near, mask, len(shape_of(mask)))
        return self.masks[key]

    def _found(self, node: Any) -> None:
        mask = mask_of(self.program, node)
        if mask is not None and mask not in self.rows and len(shape_of(mask)):
            mask, flat = self._flat(node, mask)
            self._choose(node, places(self, node, mask, flat), flat)
            if node.target is ATEN.where.default:  # the columns one by one
                columns = self.call(node, ATEN.unbind.int, self.rows[node].whole, 1)
                self.rows[node] = Rows(columns, flat)

    def _read(self, node: Any) -> None:
        source, mask = node.args[0], pytree.tree_leaves(node.args[1])[0]
        value, rank = source.meta["val"], len(shape_of(mask))
        selected = node.target is ATEN.masked_select.default
        if source in self.rows or free_unbacked_symbols(value) or not 0 < rank <= value.ndim:
            return
        if any(isinstance(n, int) and n == 0 for n in value.shape):
            return
        wide = zip(reversed(shape_of(mask)), reversed(value.shape), strict=False)
        if selected and any(own is not size and own not in (1, size) for own, size in wide):
            return
        if selected:
            mask = self.call(node, ATEN.expand.default, mask, self.sizes(node, source))
            rank = value.ndim
        mask, flat = self._flat(node, mask)
        self._choose(node, self.flat(node, source, rank), flat)

    def _choose(self, node: Node, whole: Node, flat: Node) -> None:
        """Note that NODE is the rows of WHOLE that FLAT shows."""
        first = self.call(node, ATEN._to_copy.default, flat, dtype=torch.int64)
        first = self.call(node, ATEN.argmax.default, first, 0, True)
        row = self.call(node, ATEN.index_select.default, whole, 0, first)
        row = self.call(node, ATEN.detach.default, row)
        kind = row.meta["val"].dtype
        other = False if kind == torch.bool else 0.5 if kind.is_floating_point else 0
        some = self.call(node, ATEN.any.default, flat)
        row = self.call(node, ATEN.where.ScalarOther, some, row, other)
        self.rows[node] = Rows(self.filled(node, Rows(whole, flat), row), flat)

    def _counted(self, node: Any) -> None:
        flat = self.rows[node.args[0]].mask
        self.sizes_of[node] = flat
        self.numbers[node] = self.call(flat, ATEN.sum.default, flat)

    def _calculated(self, node: Any) -> None:
        args = [self.numbers.get(x, x) for x in node.args]
        if node.target in (operator.add, operator.mul) and not isinstance(args[0], Node):
            args.reverse()
        if isinstance(args[0], Node):
            self.numbers[node] = self.call(args[0], _ARITHMETIC[node.target], *args)

    def _used(self, node: Any) -> None:
        if not isinstance(node.target, torch._ops.OpOverload):
            if node.target is operator.getitem and node.args[0] in self.rows:
                rows = self.rows[node.args[0]]
                whole = self.call(node, operator.getitem, rows.whole, node.args[1])
                self.rows[node] = Rows(whole, rows.mask)
            return
        used = [x for x in node.all_input_nodes if x in self.rows]
        masks = {self.rows[x].mask for x in used}
        if len(masks) > 1:
            node.meta[TAKES_ROWS] = True
        elif not used:
            self._with_numbers(node)
        elif self._is_by_row(node):
            self.rows[node] = Rows(self._again(node), masks.pop())
        else:
            self._join(node)

    def _with_numbers(self, node: Any) -> None:
        """Give NODE numbers of rows as the tensors that they are, or let it make as many rows."""
        if torch.Tag.pointwise in node.target.tags:
            replace(self.program, node, self._again(node))
            return
        masks = {self.sizes_of[x] for x in node.all_input_nodes if x in self.sizes_of}
        if len(masks) == 1 and self._is_by_row(node):
            self.rows[node] = Rows(self._again(node), masks.pop())

    def _is_by_row(self, node: Any) -> bool:
        """Tell whether NODE does the same to every row, and makes no shape of more than their number."""
        computed = [x for x in node.all_input_nodes if x in self.numbers and x not in self.sizes_of]
        shapes = computed and torch.Tag.pointwise not in node.target.tags
        return not shapes and is_by_row(node, self.rows, self.numbers)

    def _again(self, node: Any) -> Node:
        """Return what NODE computes, of all rows."""
        computes = torch.Tag.pointwise in node.target.tags

        def whole(one: Node) -> Any:
            if one in self.rows:
                return self.rows[one].whole
            if one in self.numbers and computes:
                return self.numbers[one]
            return self.sizes(node, self.sizes_of[one])[0] if one in self.sizes_of else one

        args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), whole)
        return self.call(node, node.target, *args, **kwargs)

    def _join(self, node: Any) -> None:
        rule: Callable[[Any], Node | None] | None = Joining(
            self.program, self.rows, self.masks
        ).rule(node)
        joined = rule(node) if rule else None
        if joined is None:
            node.meta[TAKES_ROWS] = True
        else:
            replace(self.program, node, joined)
