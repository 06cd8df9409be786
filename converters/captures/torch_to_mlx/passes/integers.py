"""Whole numbers of 64 bits whose values all fit 32, such as positions: computed with 32.

They take half the memory, and GPUs compute them in one instruction where 64 bits take several. What is known
of a value are bounds: a size is at most what MLX can count, a number in the graph is itself, and sums and products
have the bounds of their operands' corners. What an input holds is not known.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from itertools import product
from math import prod
from typing import Any, Final, NamedTuple

import torch
from torch.fx import Node
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from ..operations.registry import handlers
from ..sites import sites_of
from .draft import Draft, recorded, schema_arguments

LARGEST_SIZE: Final = 2**31 - 1  # MLX counts elements along an axis in 32 bits
WIDE: Final = torch.int64
NARROW, WIDEST = torch.iinfo(torch.int32), torch.iinfo(WIDE)


class Bounds(NamedTuple):
    """The least and the greatest number that a value can hold."""

    low: int
    high: int

    @property
    def fit(self) -> bool:
        """Whether 32 bits hold all numbers between."""
        return NARROW.min <= self.low and self.high <= NARROW.max


Known = dict[Node, Bounds]
Rule = Callable[..., Bounds | None]  # (bounds of an argument or what was given, by name) -> bounds


def narrow_integers(draft: Draft) -> None:
    """Compute with 32 bits what has 64, is nobody's output, and fits."""
    known: Known = {}
    for node in draft.graph.nodes:
        found = _bounds(draft, node, known)
        if found is not None and WIDEST.min <= found.low <= found.high <= WIDEST.max:
            known[node] = found  # beyond, numbers begin again at the other end
    for node in known:
        if _narrowed(node, known):
            _narrow(draft, node)


def _narrow(draft: Draft, node: Node) -> None:
    node.meta["val"] = node.meta["val"].to(torch.int32)
    if node.kwargs.get("dtype") == WIDE:
        node.update_kwarg("dtype", torch.int32)
    if node.name in draft.constants:
        draft.constants[node.name] = draft.constants[node.name].to(torch.int32)


def _narrowed(node: Node, known: Known) -> bool:
    """Tell whether NODE is a tensor of 64 bits that fits, as all do that it is computed from and cast with."""
    if not _is_wide(node) or sites_of(node):
        return False
    used = (node, *(x for x in node.all_input_nodes if _is_wide(x)))
    return all(x in known and known[x].fit for x in used) and all(
        _takes_narrow(user, known) for user in node.users
    )


def _is_wide(node: Node) -> bool:
    value = recorded(node)
    return value is not None and value.dtype == WIDE


def _takes_narrow(user: Any, known: Known) -> bool:
    """Tell whether USER casts its operands, makes what fits of them, or only moves them and looks up by them."""
    operation = handlers().get(str(user.target))
    if operation is None or _name(user) is None:
        return False
    numbers = [it for it in (*user.args, *user.kwargs.values()) if type(it) is int]
    made = user in known and known[user].fit
    if made or _name(user) in (*_SAME, "embedding"):
        return True
    return operation.promote != "none" and all(Bounds(it, it).fit for it in numbers)


def _name(node: Node) -> str | None:
    """Return the name of NODE's operation of ``aten``; none has that of bits seen as another dtype."""
    name, _, overload = str(node.target).removeprefix("aten.").partition(".")
    known = isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "aten"
    return name if known and overload != "dtype" else None


def _bounds(draft: Draft, node: Node, known: Known) -> Bounds | None:
    """Return the bounds of NODE, a constant or an operation that has a rule."""
    if node.name in draft.constants:
        return _of_values(draft.constants[node.name])
    rule = RULES.get(_name(node) or "") if _is_wide(node) else None
    if rule is None:
        return None
    given = schema_arguments(node)
    return rule({name: _of(it, known) for name, it in given.items()}, given)


def _of_values(held: torch.Tensor) -> Bounds | None:
    if held.dtype != WIDE or not held.numel():
        return None
    return Bounds(int(held.min()), int(held.max()))


def _of(argument: Any, known: Mapping[Node, Bounds]) -> Any:
    """Return the bounds of ARGUMENT: a number, a size, a tensor of the graph, or several."""
    if isinstance(argument, list | tuple):
        return [_of(item, known) for item in argument]
    if isinstance(argument, int):
        return Bounds(int(argument), int(argument))
    if not isinstance(argument, Node):
        return None
    value = argument.meta.get("val")
    if isinstance(value, torch.SymInt):
        return _of_size(value)
    return known.get(argument) or _of_dtype(value)


def _of_dtype(value: Any) -> Bounds | None:
    """Return what a tensor of narrower whole numbers, or of truth values, can hold."""
    if not isinstance(value, torch.Tensor) or value.is_floating_point() or value.is_complex():
        return None
    if value.dtype == torch.bool:
        return Bounds(0, 1)
    return Bounds(torch.iinfo(value.dtype).min, torch.iinfo(value.dtype).max)


def _of_size(size: Any) -> Bounds | None:
    """Return the bounds of a size, or of what is computed of sizes."""
    if not isinstance(size, torch.SymInt):
        return Bounds(int(size), int(size))
    recorded_ranges = size.node.shape_env.var_to_range
    ranges = {
        symbol: ValueRanges(0, min(recorded_ranges[symbol].upper, LARGEST_SIZE))
        for symbol in size.node.expr.free_symbols
    }
    found = bound_sympy(size.node.expr, ranges)
    if {found.lower, found.upper} & {int_oo, -int_oo}:
        return None
    return Bounds(int(found.lower), int(found.upper))


def _corners(function: Callable[..., int], *of: str) -> Rule:
    """Return the rule of a FUNCTION that is monotonic in each of its arguments, called OF."""

    def rule(bounds: dict[str, Any], given: Mapping[str, Any]) -> Bounds | None:
        operands = [it for name in of if isinstance(it := bounds.get(name), Bounds)]
        if given.get("alpha", 1) != 1 or len(operands) < len(of):
            return None
        found = [function(*corner) for corner in product(*operands)]
        return Bounds(min(found), max(found))

    return rule


def _any_of(*of: str) -> Rule:
    """Return the rule of an operation whose result holds numbers of its arguments OF and no others."""

    def rule(bounds: dict[str, Any], given: Mapping[str, Any]) -> Bounds | None:
        return _hull(bounds[name] if name in given else Bounds(0, 0) for name in of)

    return rule


def _hull(parts: Iterable[Any]) -> Bounds | None:
    found: list[Any] = []
    for part in parts:
        found += part if isinstance(part, list) else [part]
    if not found or not all(isinstance(it, Bounds) for it in found):
        return None
    return Bounds(min(it.low for it in found), max(it.high for it in found))


def _absolute(bounds: dict[str, Any], _: Any) -> Bounds | None:
    it = bounds["self"]
    if it is None:
        return None
    ends = abs(it.low), abs(it.high)
    return Bounds(0 if it.low <= 0 <= it.high else min(ends), max(ends))


def _clamped(bounds: dict[str, Any], given: Mapping[str, Any]) -> Bounds | None:
    it = bounds["self"]
    for name, function in (("min", max), ("max", min)):
        if given[name] is not None:
            bound = bounds[name]
            if it is None or not isinstance(bound, Bounds):
                return None
            it = Bounds(function(it.low, bound.low), function(it.high, bound.high))
    return it  # type: ignore[no-any-return]


def _counted(bounds: dict[str, Any], given: Mapping[str, Any]) -> Bounds | None:
    """Bound ``arange``: from its start to before its end, whatever the steps."""
    start, end, step = bounds.get("start", Bounds(0, 0)), bounds["end"], given.get("step", 1)
    if not all(isinstance(it, Bounds) for it in (start, end)) or not isinstance(step, int):
        return None
    if step < 0:
        return Bounds(min(end.low + 1, start.high), start.high)
    return Bounds(start.low, max(end.high - 1, start.low))


def _divided(bounds: dict[str, Any], given: Mapping[str, Any]) -> Bounds | None:
    by = given["other"]
    if not isinstance(by, int) or by < 1:
        return None
    return _corners(operator.floordiv, "self", "other")(bounds, given)


def _rest(bounds: dict[str, Any], given: Mapping[str, Any]) -> Bounds | None:
    by = given["other"]
    return Bounds(0, by - 1) if isinstance(by, int) and by > 0 and bounds["self"] else None


def _summed(bounds: dict[str, Any], given: Mapping[str, Any]) -> Bounds | None:
    """Bound sums, running ones too: as many times the bounds as there are elements."""
    value, it, axes = recorded(given["self"]), bounds["self"], given.get("dim")
    if value is None or it is None or not value.ndim:
        return None
    axes = range(value.ndim) if axes in (None, []) else [axes] if isinstance(axes, int) else axes
    sizes = [_of_size(value.shape[axis]) for axis in axes]
    if None in sizes:
        return None
    most = prod(size.high for size in sizes if size)
    return Bounds(min(it.low, 0) * most, max(it.high, 0) * most)


_SAME: Final = (
    *(
        "view",
        "reshape",
        "_unsafe_view",
        "expand",
        "expand_as",
        "broadcast_to",
        "permute",
        "transpose",
    ),
    *(
        "t",
        "unsqueeze",
        "squeeze",
        "slice",
        "select",
        "clone",
        "alias",
        "detach",
        "contiguous",
        "flip",
    ),
    *("repeat", "gather", "index", "index_select", "_to_copy", "diagonal", "roll", "narrow"),
)
RULES: Final[Mapping[str, Rule]] = {
    **dict.fromkeys(_SAME, _any_of("self")),
    "add": _corners(operator.add, "self", "other"),
    "sub": _corners(operator.sub, "self", "other"),
    "rsub": _corners(lambda one, other: other - one, "self", "other"),
    "mul": _corners(operator.mul, "self", "other"),
    "neg": _corners(operator.neg, "self"),
    "abs": _absolute,
    "clamp": _clamped,
    "floor_divide": _divided,
    "remainder": _rest,
    **dict.fromkeys(("minimum", "min"), _corners(min, "self", "other")),
    **dict.fromkeys(("maximum", "max"), _corners(max, "self", "other")),
    "where": _any_of("self", "other"),
    "masked_fill": _any_of("self", "value"),
    **dict.fromkeys(("tril", "triu"), _any_of("self", "nothing")),
    **dict.fromkeys(("cat", "stack"), _any_of("tensors")),
    **dict.fromkeys(("cumsum", "sum"), _summed),
    "arange": _counted,
    **dict.fromkeys(("full", "full_like", "new_full"), _any_of("fill_value")),
    **dict.fromkeys(("zeros", "zeros_like", "new_zeros"), lambda *_: Bounds(0, 0)),
    **dict.fromkeys(("ones", "ones_like", "new_ones"), lambda *_: Bounds(1, 1)),
    "scalar_tensor": _any_of("s"),
}
