"""What joins chosen rows, or writes them back: a fill for the others under which it does the same to all rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.fx import Node

from .editing import ATEN, Editor, Rows, key_of, shape_of, spelled

_INF: Final = float("inf")
# Operation -> what changes nothing in it.
_NEUTRAL: Final = {
    **dict.fromkeys(("sum.default", "sum.dim_IntList", "linalg_vector_norm.default"), 0),
    **dict.fromkeys(("amax.default", "max.default", "logsumexp.default"), -_INF),
    **dict.fromkeys(("amin.default", "min.default"), _INF),
    **dict.fromkeys(("any.default", "any.dim", "any.dims"), 0),
    **dict.fromkeys(("all.default", "all.dim", "all.dims", "prod.default"), 1),
}
_SPREADS: Final = tuple(
    f"{kind}.{form}" for kind in ("var", "std") for form in ("correction", "dim", "default")
)
_LOSSES: Final = frozenset(
    (
        *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss", "kl_div"),
        *("binary_cross_entropy", "binary_cross_entropy_with_logits"),
    )
)
_CLASS_LOSSES: Final = frozenset(("cross_entropy_loss", "nll_loss_nd"))
_AT_PLACES: Final = ("index_add", "scatter_add")
_NOT: Final = (ATEN.bitwise_not.default, ATEN.logical_not.default)


@dataclass
class Joining(Editor):
    """Ways to join rows."""

    rows: Mapping[Any, Rows]
    masks: Mapping[str, tuple[Node, Node]]

    def rule(self, node: Any) -> Callable[[Any], Node | None] | None:
        """Return what to do with NODE, if it takes rows as what they are."""
        name = str(node.target).removeprefix("aten.")
        stem, used = name.partition(".")[0], [x for x in node.all_input_nodes if x in self.rows]
        by_name = {
            **dict.fromkeys(_AT_PLACES, self._added),
            "index_put": self._put,
            "masked_scatter": self._scattered,
        }
        if stem in _LOSSES | _CLASS_LOSSES and set(used) == set(node.args[:2]):
            return self._lost if stem in _LOSSES else self._classified
        return self._reduction(name) if used == [node.args[0]] else by_name.get(stem)

    def _reduction(self, name: str) -> Callable[[Any], Node | None] | None:
        if name in ("mean.default", "mean.dim"):
            return self._mean
        if name in _SPREADS:
            return self._spread
        return self._reduced if name in _NEUTRAL else None

    def _reduced(self, node: Any) -> Node | None:
        rows, name = self.rows[node.args[0]], str(node.target).removeprefix("aten.")
        kind, fill = rows.whole.meta["val"].dtype, _NEUTRAL[name]
        order = node.args[1] if "norm" in name and len(node.args) > 1 else 2
        if order < 0 or (math.isinf(fill) and not kind.is_floating_point):
            return None
        if name.startswith("sum"):
            return self._sum(node, rows, node.args[1:], dict(node.kwargs))
        whole = self.filled(node, rows, bool(fill) if kind == torch.bool else fill)
        return self.call(node, node.target, whole, *node.args[1:], **node.kwargs)

    def _sum(self, node: Any, rows: Rows, axes: Any, options: dict[str, Any]) -> Node:
        """Return the sum of the chosen ROWS; torch sums 16 bits in float32, and so does what is divided after it."""
        target = ATEN.sum.dim_IntList if axes else ATEN.sum.default
        kind = rows.whole.meta["val"].dtype
        fill = False if kind == torch.bool else 0.0 if kind.is_floating_point else 0
        return self.call(node, target, self.filled(node, rows, fill), *axes, **options)

    def _count(self, near: Node, rows: Rows, axes: Any) -> Node:
        """Return how many elements of the chosen ROWS lie along AXES, the first among them."""
        count = self.call(near, ATEN.sum.default, rows.mask)
        sizes = self.sizes(near, rows.whole)
        each = self.product(near, [sizes[axis] for axis in axes if axis])
        return count if each == 1 else self.call(near, ATEN.mul.Tensor, count, each)

    def _mean(self, node: Any) -> Node | None:
        rows, options = self.rows[node.args[0]], dict(node.kwargs)
        value = rows.whole.meta["val"]
        if not value.is_floating_point():
            return None
        narrow = value.dtype in (torch.float16, torch.bfloat16)  # torch joins these in float32
        kind = options.pop("dtype", None) or value.dtype
        total = self._sum(node, rows, node.args[1:], {"dtype": torch.float32} if narrow else {})
        count = self._count(node, rows, _axes(node, value.ndim))
        mean = self.call(node, ATEN.div.Tensor, total, count)
        return (
            mean
            if mean.meta["val"].dtype == kind
            else self.call(node, ATEN._to_copy.default, mean, dtype=kind)
        )

    def _spread(self, node: Any) -> Node | None:
        """Return a variance or deviation: of all rows, the others at the mean, then as if these were not."""
        rows, axes = self.rows[node.args[0]], _axes(node, len(shape_of(node.args[0])))
        if 0 not in axes:
            return None
        own = _correction(node)
        filled = self.filled(node, rows, 0.0)
        total = self.call(node, ATEN.sum.dim_IntList, filled, list(axes), True)
        count = self._count(node, rows, axes)
        mean = self.call(node, ATEN.div.Tensor, total, count)
        whole = self.filled(node, rows, mean)
        found = self.call(node, node.target, whole, *node.args[1:], **node.kwargs)
        sizes = self.sizes(node, rows.whole)
        every = self.call(
            node,
            ATEN.mul.Tensor,
            self.call(node, ATEN.ones_like.default, count),
            self.product(node, [sizes[axis] for axis in axes]),
        )
        lacking = [self.call(node, ATEN.sub.Tensor, it, own) for it in (every, count)]
        share = self.call(node, ATEN.div.Tensor, *lacking)
        if "std" in str(node.target):
            share = self.call(node, ATEN.sqrt.default, share)
        return self.call(node, ATEN.mul.Tensor, found, share)

    def _lost(self, node: Any) -> Node | None:
        """Return a loss of each element, of which those chosen are joined; 1 is torch's code of a mean."""
        one, other, options = _options(node)
        rank = len(shape_of(one))
        if any(isinstance(x, Node) and len(shape_of(x)) >= rank for x in options.values()):
            return None
        mean = options.pop("reduction", 1) == 1
        pair = self.rows[one].whole, self.rows[other].whole
        each = Rows(
            self.call(node, node.target, *pair, reduction=0, **options), self.rows[one].mask
        )
        value = each.whole.meta["val"]
        narrow = value.dtype in (torch.float16, torch.bfloat16)
        total = self._sum(node, each, (), {"dtype": torch.float32} if narrow else {})
        if mean:
            total = self.call(
                node, ATEN.div.Tensor, total, self._count(node, each, range(value.ndim))
            )
        return self.call(node, ATEN._to_copy.default, total, dtype=value.dtype) if narrow else total

    def _classified(self, node: Any) -> Node | None:
        """Return a loss of classes in which rows that the mask hides have the class that it ignores."""
        logits, classes, options = _options(node)
        if classes.meta["val"].is_floating_point():
            return None
        ignored = options.get("ignore_index", -100)
        labels = self.filled(node, self.rows[classes], ignored)
        return self.call(node, node.target, self.rows[logits].whole, labels, **options)

    def _added(self, node: Any) -> Node | None:
        """Return sums by places, to which the others add zero."""
        base, axis, places, values = node.args[:4]
        if base in self.rows or axis != 0 or places not in self.rows or values not in self.rows:
            return None
        whole, values = self.rows[places].whole, self.filled(node, self.rows[values], 0)
        return self.call(node, node.target, base, 0, whole, values, *node.args[4:], **node.kwargs)

    def _put(self, node: Any) -> Node | None:
        base, chosen, value, *added = node.args
        if base in self.rows or value not in self.rows:
            return None
        rows = self.rows[value]
        if any(added) and all(x in self.rows for x in chosen):
            places = [self.rows[x].whole for x in chosen]
            return self.call(node, node.target, base, places, self.filled(node, rows, 0), True)
        _, flat = self.masks.get(key_of(chosen[0]), (None, None))
        same = len(chosen) == 1 and not any(added) and flat is rows.mask
        return self._written(node, base, chosen[0], rows) if same else None

    def _written(self, near: Node, base: Node, mask: Node, rows: Rows) -> Node | None:
        """Return BASE with ROWS where MASK shows them."""
        rank = len(shape_of(mask))
        if len(shape_of(rows.whole)) != len(shape_of(base)) - rank + 1:
            return None
        sizes = [*self.sizes(near, base)[:rank], *self.sizes(near, rows.whole)[1:]]
        values = self.shaped(near, rows.whole, sizes)
        wide = self.shaped(near, mask, [*sizes[:rank], *[1] * (len(sizes) - rank)])
        return self.call(near, ATEN.where.self, wide, values, base)

    def _scattered(self, node: Any) -> Node | None:
        base, wide, value = node.args
        if base in self.rows or wide in self.rows or value not in self.rows:
            return None
        rows = self.rows[value]
        mask = next(mask for mask, flat in self.masks.values() if flat is rows.mask)
        alike = _narrow(wide) == _narrow(mask) and len(shape_of(wide)) == len(shape_of(base))
        return self._written(node, base, mask, rows) if alike else None


def _axes(node: Any, rank: int) -> list[int]:
    """Return the axes that NODE joins, all if it names none."""
    named = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    named = [named] if isinstance(named, int) else named
    return [axis % rank for axis in named or range(rank)]


def _correction(node: Any) -> float:
    """Return by how much a spread divides by less than what there is."""
    names = [argument.name for argument in node.target._schema.arguments]
    options = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    own = options.get("correction", options.get("unbiased"))
    return 1 if own is None else 1 * own


def _narrow(node: Any) -> str:
    """Return how a mask is computed, whether or not it was given axes of size 1 at its end."""
    if node.target is ATEN.unsqueeze.default and node.args[1] in (-1, len(shape_of(node)) - 1):
        return _narrow(node.args[0])
    return f"not {_narrow(node.args[0])}" if node.target in _NOT else spelled(node)


def _options(node: Any) -> tuple[Node, Node, dict[str, Any]]:
    """Return the first two arguments of NODE, and the others by name."""
    names = [argument.name for argument in node.target._schema.arguments]
    one, other, *options = node.args
    return one, other, dict(zip(names[2:], options, strict=False)) | dict(node.kwargs)
