"""Reads by a mask, ``x[mask]``: computed on all rows, and chosen where they are summed or written back.

How many rows a mask chooses depends on values, which no recorded graph can hold. Where what follows works
row by row, and ends in a sum, a mean or a write to the same mask, all rows can be computed. Those that the
mask hides hold the first that it shows, so that nothing singular is computed that the module would not.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

from .blocks import replace

_ATEN: Final = torch.ops.aten
_LOSSES: Final = frozenset(
    f"aten.{n}.default" for n in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
)


def keep_reads_whole(program: ExportedProgram) -> None:
    """Rewrite the reads by masks of PROGRAM that can be; the census names the others."""
    rewrite = _Reads(program)
    for node in list(program.graph.nodes):
        if node.op == "call_function":
            rewrite.visit(node)


@dataclass(frozen=True)
class _Rows:
    """Rows of which a mask chooses some: all of them, and the mask."""

    whole: Node
    mask: Node


@dataclass
class _Reads:
    """Nodes of a graph that stand for chosen rows, and what to do with those that use them."""

    program: ExportedProgram
    rows: dict[Any, Any] = field(default_factory=dict)

    def visit(self, node: Node) -> None:
        """Note NODE if it chooses or keeps rows; replace it where these are joined again."""
        with self.program.graph.inserting_before(node):
            if node.target is _ATEN.index.Tensor or node.target is _ATEN.masked_select.default:
                self._read(node)
            elif any(used in self.rows for used in node.all_input_nodes):
                self._used(node)

    def _call(self, near: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
        made: Node = self.program.graph.call_function(target, args, kwargs)
        made.meta = {k: v for k, v in near.meta.items() if k in ("nn_module_stack", "stack_trace")}
        values = pytree.tree_map(
            lambda x: x.meta["val"] if isinstance(x, Node) else x, (args, kwargs)
        )
        with near.meta["val"].fake_mode:
            made.meta["val"] = target(*values[0], **values[1])
        return made

    def _shaped(self, near: Node, x: Node, shape: list[int]) -> Node:
        made = self._call(near, _ATEN.reshape.default, x, shape)
        made.target = _ATEN.view.default  # as recorded programs call it, however X lies in memory
        return made

    def _read(self, node: Any) -> None:
        source, chosen = node.args[:2]
        chosen = chosen if isinstance(chosen, list | tuple) else [chosen]
        mask, value = chosen[0], source.meta["val"]
        known = len(chosen) == 1 and mask is not None and mask.meta["val"].dtype == torch.bool
        if not known or free_unbacked_symbols(value) or source in self.rows:
            return
        if not math.prod(value.shape) or mask.meta["val"].ndim > value.ndim:
            return
        if node.target is _ATEN.masked_select.default:
            mask = self._call(node, _ATEN.expand.default, mask, list(value.shape))
        rest = value.shape[mask.meta["val"].ndim :]
        if not value.is_floating_point() or not all(isinstance(n, int) for n in value.shape):
            return
        first = self._call(node, _ATEN._to_copy.default, mask, dtype=torch.int64)
        first = self._call(node, _ATEN.argmax.default, first)
        flat = self._shaped(node, source, [-1, *rest])
        row = self._call(node, _ATEN.index_select.default, flat, 0, first)
        row = self._call(node, _ATEN.detach.default, row)
        row = self._shaped(node, row, list(rest))
        self.rows[node] = self._chosen(node, _Rows(source, mask), row)

    def _chosen(self, near: Node, rows: _Rows, other: Any) -> _Rows:
        """Return ROWS with OTHER where the mask hides them."""
        missing = rows.whole.meta["val"].ndim - rows.mask.meta["val"].ndim
        wide = rows.mask
        for _ in range(missing):
            wide = self._call(near, _ATEN.unsqueeze.default, wide, -1)
        target = _ATEN.where.self if isinstance(other, Node) else _ATEN.where.ScalarOther
        return _Rows(self._call(near, target, wide, rows.whole, other), rows.mask)

    def _used(self, node: Any) -> None:
        if node.target is operator.getitem or node.target is _ATEN.broadcast_tensors.default:
            self._passed_on(node)
            return
        rule = self._rule(node)
        given = [self.rows[used] for used in node.all_input_nodes if used in self.rows]
        alike = all(isinstance(r, _Rows) and r.mask is given[0].mask for r in given)
        if rule is not None and alike:
            rule(node, given[0].mask)

    def _passed_on(self, node: Any) -> None:
        """Take tensors of one shape, which a loss broadcasts, for what they are."""
        if node.target is operator.getitem:
            self.rows[node] = self.rows[node.args[0]][node.args[1]]
        elif all(x in self.rows for x in node.args[0]):
            shapes = {tuple(self.rows[x].whole.meta["val"].shape) for x in node.args[0]}
            if len(shapes) == 1:
                self.rows[node] = [self.rows[x] for x in node.args[0]]

    def _rule(self, node: Any) -> Callable[[Any, Node], None] | None:
        """Return what to do with NODE, if it takes rows as what they are."""
        if node.target in (_ATEN.sum.default, _ATEN.mean.default) and not node.kwargs:
            mean = node.target is _ATEN.mean.default
            return lambda node, _: self._joined(node, self.rows[node.args[0]], mean)
        if str(node.target) in _LOSSES and all(x in self.rows for x in node.args[:2]):
            return self._lost
        if node.target is _ATEN.index_put.default and len(node.args) == 3:
            return self._written
        by_row = torch.Tag.pointwise in node.target.tags or node.target is _ATEN.linear.default
        return self._row_by_row if by_row and self._fits(node) else None

    def _fits(self, node: Any) -> bool:
        """Tell whether what NODE takes beside rows is the same for every row."""
        ranks = [used.meta["val"].ndim for used in node.all_input_nodes if used in self.rows]
        others = [used.meta["val"] for used in node.all_input_nodes if used not in self.rows]
        if node.target is _ATEN.linear.default:
            return node.args[0] in self.rows and len(ranks) == 1 and ranks[0] > 1
        return len(set(ranks)) == 1 and all(
            isinstance(value, torch.Tensor) and value.ndim < ranks[0] for value in others
        )

    def _row_by_row(self, node: Any, mask: Node) -> None:
        whole = {x: self.rows[x].whole if x in self.rows else x for x in node.all_input_nodes}
        args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), whole.__getitem__)
        self.rows[node] = _Rows(self._call(node, node.target, *args, **kwargs), mask)

    def _joined(self, node: Any, rows: _Rows, mean: bool) -> None:
        """Put the mean or sum of the chosen ROWS in the place of NODE."""
        wide = rows.whole.meta["val"]
        if not wide.is_floating_point():
            return
        narrow = wide.dtype in (torch.float16, torch.bfloat16)  # torch joins these in float32
        to = {"dtype": torch.float32} if narrow else {}
        total = self._call(node, _ATEN.sum.default, self._chosen(node, rows, 0.0).whole, **to)
        if mean:
            each = math.prod(wide.shape[rows.mask.meta["val"].ndim :])
            count = self._call(node, _ATEN.sum.default, rows.mask)
            count = self._call(node, _ATEN.mul.Tensor, count, each)
            total = self._call(node, _ATEN.div.Tensor, total, count)
        if narrow:
            total = self._call(node, _ATEN._to_copy.default, total, dtype=wide.dtype)
        replace(self.program, node, total)

    def _lost(self, node: Any, mask: Node) -> None:
        """Compute a loss of each element, then join those chosen; 1 is torch's code of a mean, 0 of neither."""
        one, other, *options = node.args
        code = options[0] if options else node.kwargs.get("reduction", 1)
        pair = self.rows[one].whole, self.rows[other].whole
        others = {k: v for k, v in node.kwargs.items() if k != "reduction"}
        each = _Rows(self._call(node, node.target, *pair, 0, *options[1:], **others), mask)
        if code == 0:
            self.rows[node] = each
        else:
            self._joined(node, each, code == 1)

    def _written(self, node: Any, mask: Node) -> None:
        base, chosen, value = node.args
        if base not in self.rows and list(chosen) == [mask] and value in self.rows:
            replace(self.program, node, self._chosen(node, self.rows[value], base).whole)
