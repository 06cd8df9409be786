"""Reads by a mask, ``x[mask]``: computed on all rows, and chosen where they are summed or written back.

How many rows a mask chooses depends on values, which no recorded graph can hold. Where what follows works
row by row, and ends in a sum, a mean, a loss or a write to the same mask, all rows can be computed. Those that
the mask hides hold the first that it shows, so that nothing singular is computed that the module would not; where
it shows none, 0.5, at which few functions are singular.
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
from torch.fx.experimental.symbolic_shapes import free_symbols, free_unbacked_symbols
from torch.utils import _pytree as pytree

from .blocks import replace

_ATEN: Final = torch.ops.aten
_LOSSES: Final = frozenset(
    f"aten.{n}.default"
    for n in (
        *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss", "kl_div"),
        *("binary_cross_entropy", "binary_cross_entropy_with_logits"),
    )
)
_CLASS_LOSSES: Final = frozenset(("aten.cross_entropy_loss.default", "aten.nll_loss_nd.default"))
_ON_ELEMENTS: Final = (_ATEN._to_copy.default, _ATEN.detach.default)
_ON_LAST_AXES: Final = (
    *(_ATEN.linear.default, _ATEN.matmul.default, _ATEN.layer_norm.default),
    *(_ATEN.rms_norm.default, _ATEN.softmax.int, _ATEN.log_softmax.int),
)
_OVER_AXES: Final = (
    *(_ATEN.mean.dim, _ATEN.sum.dim_IntList, _ATEN.var.dim),
    *(_ATEN.amax.default, _ATEN.amin.default),
)
_NOT: Final = (_ATEN.bitwise_not.default, _ATEN.logical_not.default)


def keep_reads_whole(program: ExportedProgram) -> None:
    """Rewrite the reads by masks of PROGRAM that can be; the census names the others."""
    _masks_for_places(program)
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
    masks: dict[str, Node] = field(default_factory=dict)

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
        mask = self.masks.setdefault(_spelled(mask), mask)
        rest = value.shape[mask.meta["val"].ndim :]
        selected = node.target is _ATEN.masked_select.default
        if mask.meta["val"].ndim > value.ndim or not _known(value.shape if selected else rest):
            return
        if any(isinstance(n, int) and n == 0 for n in value.shape):
            return
        wide = zip(reversed(mask.meta["val"].shape), reversed(value.shape), strict=False)
        if selected and any(own not in {1, size} for own, size in wide):
            return
        if selected:
            mask, rest = self._call(node, _ATEN.expand.default, mask, list(value.shape)), ()
        rows = _Rows(source, mask)
        self.rows[node] = self._chosen(node, rows, self._first(node, rows, list(rest)))

    def _first(self, near: Node, rows: _Rows, shape: list[int]) -> Node:
        """Return the first of the chosen ROWS, of SHAPE, without a gradient."""
        first = self._call(near, _ATEN._to_copy.default, rows.mask, dtype=torch.int64)
        first = self._call(near, _ATEN.argmax.default, first)
        flat = self._shaped(near, rows.whole, [-1, *shape])
        row = self._call(near, _ATEN.index_select.default, flat, 0, first)
        row = self._shaped(near, self._call(near, _ATEN.detach.default, row), shape)
        other = 0.5 if row.meta["val"].is_floating_point() else 0
        some = self._call(near, _ATEN.any.default, rows.mask)
        return self._call(near, _ATEN.where.ScalarOther, some, row, other)

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
        name, used = str(node.target), [x for x in node.all_input_nodes if x in self.rows]
        if name in ("aten.sum.default", "aten.mean.default") and not node.kwargs:
            return lambda node, _: self._joined(node, self.rows[node.args[0]], "mean" in name)
        if name in _LOSSES | _CLASS_LOSSES and set(used) == set(node.args[:2]):
            return self._lost if name in _LOSSES else self._classified
        if name == "aten.index_put.default" and len(node.args) == 3:
            return self._written
        if name == "aten.masked_scatter.default":
            return self._scattered
        if name == "aten.view.default" and str(_shape(node)) == str(_shape(used[0])):
            return lambda node, _: self.rows.update({node: self.rows[node.args[0]]})
        return self._row_by_row if self._is_by_row(node, used) else None

    def _is_by_row(self, node: Any, used: list[Node]) -> bool:
        """Tell whether NODE does the same to every row of what it USED."""
        rank = len(_shape(used[0]))
        if node.target in _OVER_AXES:
            axes = {axis % rank for axis in (node.args[1:2] or [()])[0] or (0,)}
            return used == [node.args[0]] and 0 not in axes
        if node.target in _ON_LAST_AXES:
            return used == [node.args[0]] and rank > 1 and _axes(node) < rank
        by_row = torch.Tag.pointwise in node.target.tags or node.target in _ON_ELEMENTS
        others = [x.meta["val"] for x in node.all_input_nodes if x not in self.rows]
        alike = all(len(_shape(x)) == rank for x in used)
        return (
            by_row and alike and all(isinstance(x, torch.Tensor) and x.ndim < rank for x in others)
        )

    def _row_by_row(self, node: Any, mask: Node) -> None:
        whole = {x: self.rows[x].whole if x in self.rows else x for x in node.all_input_nodes}
        args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), whole.__getitem__)
        if node.target in _ON_LAST_AXES and isinstance(args[1], int):
            args = (args[0], -_axes(node), *args[2:])
        if node.target in _OVER_AXES:
            rank = len(_shape(node.args[0]))
            args = (args[0], [axis % rank - rank for axis in args[1]], *args[2:])
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
        one, other, options = _options(node)
        rank = len(_shape(one))
        if any(isinstance(x, Node) and len(_shape(x)) >= rank for x in options.values()):
            return
        code = options.pop("reduction", 1)
        pair = self.rows[one].whole, self.rows[other].whole
        each = _Rows(self._call(node, node.target, *pair, reduction=0, **options), mask)
        if code == 0:
            self.rows[node] = each
        else:
            self._joined(node, each, code == 1)

    def _classified(self, node: Any, mask: Node) -> None:
        """Give the class that a loss ignores to rows that MASK hides."""
        logits, classes, options = _options(node)
        if classes.meta["val"].is_floating_point():
            return
        labels = self._chosen(node, self.rows[classes], options.get("ignore_index", -100)).whole
        each = options.get("reduction", 1) == 0
        if each and not _known(_shape(labels)):
            return
        pair = [self.rows[logits].whole, labels]
        if len(_shape(mask)) > 1:  # classes lie along the second axis
            rests = (_shape(logits)[1:], _shape(classes)[1:])
            pair = [self._shaped(node, x, [-1, *rest]) for x, rest in zip(pair, rests, strict=True)]
        loss = self._call(node, node.target, *pair, **options)
        if each:
            self.rows[node] = _Rows(self._shaped(node, loss, list(_shape(labels))), mask)
        else:
            replace(self.program, node, loss)

    def _written(self, node: Any, mask: Node) -> None:
        base, chosen, value = node.args
        alike = len(chosen) == 1 and self.masks.get(_spelled(chosen[0]), chosen[0]) is mask
        if base not in self.rows and alike and value in self.rows:
            replace(self.program, node, self._chosen(node, self.rows[value], base).whole)

    def _scattered(self, node: Any, mask: Node) -> None:
        base, wide, value = node.args
        if base in self.rows or wide in self.rows or value not in self.rows:
            return
        shape, narrow = list(_shape(base)), list(_shape(mask))
        missing = [1] * (len(shape) - len(narrow))
        alike = list(_shape(self.rows[value].whole)) == shape and _narrow(wide) == _narrow(mask)
        if alike and list(_shape(wide)) == narrow + missing:
            replace(self.program, node, self._chosen(node, self.rows[value], base).whole)


def _masks_for_places(program: ExportedProgram) -> None:
    """Let what indexes by all places of a mask, as ``torch.where(mask)`` gives them, index by the mask."""
    for node in list(program.graph.nodes):
        if node.target is _ATEN.index_select.default and node.args[1] == 0:
            mask = _mask_of(program, [node.args[2]])
            if mask is not None:
                node.target, node.args = _ATEN.index.Tensor, (node.args[0], [mask])
        elif node.target in (_ATEN.index.Tensor, _ATEN.index_put.default):
            mask = _mask_of(program, node.args[1])
            if mask is not None:
                node.update_arg(1, [mask])


def _mask_of(program: ExportedProgram, places: Any) -> Node | None:
    """Return the mask of which PLACES are all, one tensor for each of its axes in order."""
    found = [_place(it) for it in places]
    nonzero = found[0][0] if found and found[0] else None
    if (
        nonzero is None
        or not free_symbols(nonzero.meta["val"].shape[0])
        or found != [(nonzero, axis) for axis in range(len(found))]
    ):
        return None
    mask: Node = nonzero.args[0]
    value = mask.meta["val"]
    if value.ndim != len(found) or free_unbacked_symbols(value) or value.dtype == torch.bool:
        return mask if value.ndim == len(found) and value.dtype == torch.bool else None
    with program.graph.inserting_before(nonzero):
        made: Node = program.graph.call_function(_ATEN.ne.Scalar, (mask, 0))
    with value.fake_mode:
        made.meta = {**nonzero.meta, "val": value != 0}
    return made


def _place(node: Any) -> tuple[Any, int] | None:
    """Return the ``nonzero`` of which NODE is a column, and which."""
    target = getattr(node, "target", None)
    if target is operator.getitem and _columns(node.args[0]):
        table, column = node.args[0].args[0], node.args[1]
    elif target is _ATEN.select.int and node.args[1] == 1:
        table, column = node.args[0], node.args[2]
    elif target is _ATEN.squeeze.dim and node.args[1] in (1, -1):
        table, column = node.args[0], 0
    else:
        return None
    return (table, column) if table.target is _ATEN.nonzero.default else None


def _columns(node: Any) -> bool:
    return node.target is _ATEN.unbind.int and node.args[1:] == (1,)


def _narrow(node: Any) -> str:
    """Return how a mask is computed, whether or not it was given axes of size 1 at its end."""
    if node.target is _ATEN.unsqueeze.default and node.args[1] in (-1, len(_shape(node)) - 1):
        return _narrow(node.args[0])
    return f"not {_narrow(node.args[0])}" if node.target in _NOT else _spelled(node)


def _shape(node: Node) -> Any:
    return node.meta["val"].shape


def _known(shape: Any) -> bool:
    return all(isinstance(size, int) for size in shape)


def _options(node: Any) -> tuple[Node, Node, dict[str, Any]]:
    """Return the first two arguments of NODE, and the others by name."""
    names = [argument.name for argument in node.target._schema.arguments]
    one, other, *options = node.args
    return one, other, dict(zip(names[2:], options, strict=False)) | dict(node.kwargs)


def _axes(node: Any) -> int:
    """Return how many of the last axes NODE, one of ``_ON_LAST_AXES``, works along; of matmul, its matrix's."""
    second = node.args[1]
    if isinstance(second, list | tuple):
        return len(second)
    if isinstance(second, int):
        return -second if second < 0 else len(_shape(node)) - second
    return 1 if len(_shape(second)) == 2 else len(_shape(node)) + 1


def _spelled(node: Any) -> str:
    """Return how a mask is computed, a few steps back: two that are spelled alike are equal."""

    def spelled(node: Any, steps: int) -> str:
        seeded = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        if node.op != "call_function" or seeded or not steps:
            return str(node.name)
        taken = torch.fx.node.map_arg((node.args, node.kwargs), lambda one: spelled(one, steps - 1))
        return f"{node.target}{taken}"

    return spelled(node, 4)
