"""What a boolean mask is, for all sizes: everything, the causal one, or something that depends on inputs.

Masks are built of counts (``arange``), comparisons and conjunctions; these are followed as facts, so that
the answer holds at every size, also at those that vary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch.fx import Node

from .draft import is_call, recorded

CAUSAL: Final = "causal"  # the key's number is at most the query's
HIDDEN: Final = -1e4  # what is added to scores of hidden keys is below it


class Same(NamedTuple):
    """One number everywhere."""

    value: Any


class Count(NamedTuple):
    """0, 1, 2, ... along an axis, counted from the last, plus START."""

    axis: int
    start: int


class All(NamedTuple):
    """A mask: what must hold for a key to be seen; nothing if all are seen."""

    facts: frozenset[str]


Value = Same | Count | All | None  # None: not known
COPIES: Final = (
    "alias.default",
    "clone.default",
    "detach.default",
    "expand.default",
    "contiguous.default",
)
ONES: Final = ("ones.default", "new_ones.default", "ones_like.default")
COUNTS: Final = ("arange.default", "arange.start")
COMPARED: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "le": lambda a, b: a <= b,
    "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "gt": lambda a, b: a > b,
}


def value_of(node: Any, known: dict[Node, Value]) -> Value:
    """Return what NODE holds at every size; KNOWN is filled on the way."""
    if isinstance(node, bool | int | float):
        return Same(node)
    if not isinstance(node, Node):
        return None
    if node not in known:
        known[node] = None
        known[node] = _computed(node, known)
    return known[node]


def _computed(node: Any, known: dict[Node, Value]) -> Value:
    name = str(node.target).removeprefix("aten.").split(".")[0]
    if is_call(node, *COUNTS):
        return Count(-1, 0) if len(node.args) == 1 or node.args[0] == 0 else None
    if is_call(node, *ONES):
        return All(frozenset()) if node.meta["val"].dtype == torch.bool else Same(1)
    values = [value_of(argument, known) for argument in node.args[:2]]
    if is_call(node, *COPIES):
        return values[0]
    rule = _RULES.get(name)
    if name in COMPARED and len(values) == 2:
        return _comparison(name, *values)
    return rule(node, values, known) if rule else None


def _comparison(name: str, one: Value, other: Value) -> Value:
    if isinstance(one, Same) and isinstance(other, Same):
        return All(frozenset()) if COMPARED[name](one.value, other.value) else Same(False)
    if isinstance(one, Count) and isinstance(other, Same):
        always = name in {"ge", "gt"} and COMPARED[name](one.start, other.value)
        return All(frozenset()) if always else None
    if name == "ge":
        return _comparison("le", other, one)
    if name == "le" and isinstance(one, Count) and isinstance(other, Count):
        causal = (one.axis, other.axis) == (-1, -2) and one.start == other.start
        return All(frozenset([CAUSAL])) if causal else None
    return None


def _cast(node: Any, values: list[Value], _known: dict[Node, Value]) -> Value:
    kept = isinstance(values[0], All) == (node.meta["val"].dtype == torch.bool)
    return values[0] if kept and not isinstance(values[0], Same) else None


def _sum(node: Any, values: list[Value], _known: dict[Node, Value]) -> Value:
    one, other = values
    plain = len(node.args) == 2 and not node.kwargs  # no factor of the second
    if not plain or not isinstance(other, Same) or not isinstance(other.value, int):
        return None
    step = other.value if is_call(node, "add.Tensor", "add.Scalar") else -other.value
    if isinstance(one, Count):
        return one._replace(start=one.start + step)
    return Same(one.value + step) if isinstance(one, Same) else None


def _unsqueezed(node: Any, values: list[Value], _known: dict[Node, Value]) -> Value:
    axes, axis = node.meta["val"].ndim, int(node.args[1])
    new = axis % axes - axes  # counted from the last
    if isinstance(values[0], Count):
        return values[0]._replace(axis=values[0].axis - (new > values[0].axis - 1))
    if isinstance(values[0], All) and values[0].facts and new > -3:
        return None
    return values[0]


def _sliced(node: Any, values: list[Value], _known: dict[Node, Value]) -> Value:
    count, value = values[0], recorded(node)
    if not isinstance(count, Count) or value is None:
        return count if isinstance(count, Same) else None
    axis, start = (*node.args[1:3], 0, 0)[:2]
    if (int(axis) % value.ndim) - value.ndim != count.axis or not start:
        along = value.shape[count.axis]
        return Same(count.start) if type(along) is int and along == 1 else count
    return None


def _difference(node: Any, values: list[Value], known: dict[Node, Value]) -> Value:
    """Follow ``diff`` of a count that begins with the number before it: 1 everywhere."""
    if len(node.args) != 4 or node.args[1:3] != (1, -1) or not isinstance(values[0], Count):
        return None
    before = value_of(node.args[3], known)
    steady = values[0].axis == -1 and before == Same(values[0].start - 1)
    return Same(1) if steady else None


def _running_sum(_node: Any, values: list[Value], _known: dict[Node, Value]) -> Value:
    return Same(0) if values[0] in {Same(False), Same(0)} else None


def _indexed(node: Any, values: list[Value], known: dict[Node, Value]) -> Value:
    """Follow x[i, j] where x counts along its last axis: it is j, and what x begins with."""
    source, value = values[0], recorded(node.args[0])
    if not isinstance(source, Count) or value is None:
        return source if isinstance(source, Same) else None
    indices: Any = node.args[1]
    last = value_of(indices[-1], known) if len(indices) == value.ndim else None
    if source.axis != -1 or not isinstance(last, Count):
        return None
    return last._replace(start=last.start + source.start)


def _looked_up(_node: Any, values: list[Value], _known: dict[Node, Value]) -> Value:
    return values[0] if isinstance(values[0], Same) else None


def _both(_node: Any, values: list[Value], _known: dict[Node, Value]) -> Value:
    one, other = values
    if not isinstance(one, All) or not isinstance(other, All):
        return None
    return All(one.facts | other.facts)


def _chosen(node: Any, values: list[Value], _known: dict[Node, Value]) -> Value:
    """Follow a mask that is added to scores: 0 where a key is seen, and far below where not."""
    seen, hidden = (_number(argument) for argument in node.args[1:3])
    added = seen == 0 and hidden is not None and hidden <= HIDDEN
    return values[0] if added and isinstance(values[0], All) else None


def _number(argument: Any) -> float | None:
    if is_call(argument, "scalar_tensor.default", "full.default"):
        argument = argument.args[-1]
    return float(argument) if isinstance(argument, int | float) else None


_RULES: Final[dict[str, Callable[[Node, list[Value], dict[Node, Value]], Value]]] = {
    "_to_copy": _cast,
    "add": _sum,
    "sub": _sum,
    "unsqueeze": _unsqueezed,
    "slice": _sliced,
    "diff": _difference,
    "cumsum": _running_sum,
    "gather": _looked_up,
    "index": _indexed,
    "__and__": _both,
    "bitwise_and": _both,
    "logical_and": _both,
    "where": _chosen,
}
