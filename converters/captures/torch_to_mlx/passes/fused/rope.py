"""Rotary positions (Su et al. 2021, equation 34) of halves: ``x * cos + rotate_half(x) * sin``.

Only where cosines and sines are those of the positions 0, 1, 2, ...: MLX counts them itself.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch
from torch.fx import Node

from ..draft import Draft, is_call, recorded
from ..forms import ROPE

MOVES: Final = ("unsqueeze.default", "_to_copy.default", "detach.default", "alias.default")
ROUNDING: Final = 2.0**-21  # of the float32 powers and quotients that frequencies are made by
COPIES: Final = ("clone.default", "lift_fresh_copy.default", "expand.default", "contiguous.default")


class _Table(NamedTuple):
    """Cosines or sines: the angles of which, and what they are multiplied by."""

    function: str
    angles: Any
    factor: float


def fuse_rope(draft: Draft) -> None:
    """Let one operation rotate what two products, a concatenation and a sum rotate."""
    for node in draft.calls():
        found = _rotation(node)
        if found is None:
            continue
        x, frequencies, factor = found
        wavelengths = _wavelengths(draft, node, frequencies)
        fused = draft.add(node, ROPE, x, wavelengths, _base(draft.constants.get(frequencies.name)))
        if factor != 1.0:
            fused = draft.add(node, torch.ops.aten.mul.Tensor, fused, factor)
        draft.replace(node, fused)


def _wavelengths(draft: Draft, node: Any, frequencies: Any) -> Node:
    wide = frequencies.meta["val"].to(torch.float32)
    if frequencies.meta["val"].dtype != torch.float32:
        frequencies = draft.add(node, torch.ops.aten._to_copy.default, frequencies, val=wide)
        frequencies.kwargs = {"dtype": torch.float32}
    return draft.add(node, torch.ops.aten.reciprocal.default, frequencies, val=wide)


def _base(frequencies: torch.Tensor | None) -> float | None:
    """Return b where the n FREQUENCIES are known to be b ** (-i / n), i = 0, 1, ..., in float32.

    >>> round(_base(10000 ** -(torch.arange(4) / 4)), 1), _base(torch.tensor([1.0, 0.5, 0.1]))
    (10000.0, None)
    """
    if frequencies is None or len(frequencies) == 1 or float(frequencies[-1]) <= 0:
        return None
    wide, count = frequencies.double(), len(frequencies)
    base = float(wide[-1]) ** (-count / (count - 1))
    powers = base ** -(torch.arange(count, dtype=torch.float64) / count)
    return base if torch.allclose(wide, powers, rtol=ROUNDING, atol=0) else None


def _rotation(node: Any) -> tuple[Node, Node, float] | None:
    """Return what NODE rotates, the frequencies, and the factor of the result."""
    if not is_call(node, "add.Tensor") or len(node.args) != 2 or node.kwargs:
        return None
    for straight, turned in (node.args, node.args[::-1]):
        for x, cosines in _factors(straight):
            for half, sines in _factors(turned):
                if _is_half_turn(half, x) and _fits(node, x, cosines, sines):
                    return _read(x, cosines, sines)
    return None


def _factors(product: Any) -> tuple[tuple[Any, Any], ...]:
    if not is_call(product, "mul.Tensor"):
        return ()
    one, other = product.args
    return (one, other), (other, one)


def _is_half_turn(node: Any, x: Any) -> bool:
    """Tell whether NODE is (-x2, x1) for X = (x1, x2)."""
    value = recorded(x)
    if value is None or not is_call(node, "cat.default") or len(node.args[0]) != 2:
        return False
    negated, first = node.args[0]
    width, axis = value.shape[-1], node.args[1] if len(node.args) > 1 else 0
    if (
        type(width) is not int
        or axis not in (-1, value.ndim - 1)
        or not is_call(negated, "neg.default")
    ):
        return False
    return _part(first, x) == (0, width // 2) and _part(negated.args[0], x) == (width // 2, width)


def _part(node: Any, x: Any) -> tuple[int, int] | None:
    """Return from where to where NODE is a slice of X along its last axis."""
    if not is_call(node, "slice.Tensor") or node.args[0] is not x or len(node.args) != 4:
        return None
    value = x.meta["val"]
    _, axis, start, end = node.args
    if axis not in (-1, value.ndim - 1):
        return None
    return (start or 0), min(end, value.shape[-1])


def _fits(node: Any, x: Any, cosines: Any, sines: Any) -> bool:
    """Tell whether axes are as MLX counts them: positions last but one, the same in all before."""
    values = [recorded(each) for each in (node, x, cosines, sines)]
    if any(value is None for value in values):
        return False
    whole, given, cos, sin = values
    same = whole.shape == given.shape and whole.dtype == given.dtype and given.ndim >= 3
    return bool(same and all(_along(table.shape, given.shape) for table in (cos, sin)))


def _along(table: torch.Size, x: torch.Size) -> bool:
    """Tell whether a TABLE of positions and features lies along the last two axes of X."""
    if len(table) < 2 or any(type(size) is not int or size != 1 for size in table[:-2]):
        return False
    return table[-1] == x[-1] and str(table[-2]) == str(x[-2])


def _read(x: Any, cosines: Any, sines: Any) -> tuple[Node, Node, float] | None:
    cos, sin = _table(cosines), _table(sines)
    if cos is None or sin is None or (cos.function, sin.function) != ("cos", "sin"):
        return None
    if cos.angles is not sin.angles and not _same(cos.angles, sin.angles):
        return None
    frequencies = _frequencies(cos.angles)
    value = recorded(frequencies)
    if value is None or cos.factor != sin.factor or value.numel() * 2 != x.meta["val"].shape[-1]:
        return None
    return x, frequencies, cos.factor


def _same(one: Any, other: Any) -> bool:
    return one.target == other.target and repr(one.args) == repr(other.args)


def _through(node: Any, *names: str) -> Any:
    """Return what NODE moves, widens or repeats, but does not compute."""
    while is_call(node, *MOVES, *COPIES, *names):
        node = node.args[0]
    return node


def _table(node: Any) -> _Table | None:
    factor = 1.0
    node = _through(node)
    while is_call(node, "mul.Tensor") and isinstance(node.args[1], int | float):
        factor, node = factor * node.args[1], _through(node.args[0])
    if not is_call(node, "cos.default", "sin.default"):
        return None
    return _Table(str(node.target).split(".")[1], node.args[0], factor)


def _frequencies(angles: Any) -> Any:
    """Return f where ANGLES are (p f, p f), for the positions p = 0, 1, 2, ... along the last axis but one."""
    if not is_call(angles, "cat.default") or len(angles.args[0]) != 2:
        return None
    one, other = angles.args[0]
    product, turned = _through(one), False
    if is_call(product, "transpose.int"):
        product, turned = _through(product.args[0]), True
    if one is not other or not is_call(product, "mul.Tensor", "matmul.default", "bmm.default"):
        return None
    for positions, frequencies in (product.args, product.args[::-1]):
        source = _through(frequencies)
        if recorded(source) is None or source.meta["val"].ndim != 1 or not _counts(positions):
            continue
        across, along = (frequencies, positions) if turned else (positions, frequencies)
        if _is_column(across) and not _is_column(along):
            return _plain(source, frequencies)
    return None


def _is_column(node: Any) -> bool:
    """Tell whether the last axis of NODE has one element."""
    value = recorded(node)
    return bool(value is not None and type(value.shape[-1]) is int and value.shape[-1] == 1)


def _plain(source: Any, given: Any) -> Any:
    """Return SOURCE if on its way to GIVEN, in float32, it was moved and widened alone."""
    if given.meta["val"].dtype != torch.float32:
        return None
    while given is not source:
        if given.meta["val"].dtype not in {torch.float32, source.meta["val"].dtype}:
            return None
        given = given.args[0]
    return source


def _counts(node: Any) -> bool:
    """Tell whether NODE holds 0, 1, 2, ... along the only axis that it has more than one of."""
    node = _through(node)
    while is_call(node, "add.Tensor") and node.args[1] == 0:
        node = _through(node.args[0])
    if is_call(node, "slice.Tensor"):
        return False
    if is_call(node, "arange.start"):
        return bool(node.args[0] == 0)
    if is_call(node, "arange.start_step"):
        return bool(node.args[0] == 0 and (node.args[2:] or (1,))[0] == 1)
    return is_call(node, "arange.default")
