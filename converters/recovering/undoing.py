"""What a constant has of the tensors that arithmetic made it of: that arithmetic undone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial, reduce
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np

from ..captures.mlprogram.arithmetic import evaluate, in_order, rounds_to, tensors
from ..common.dtypes import neighbours
from ..values import Array

UNDONE: Final[Mapping[str, Any]] = {  # function of one tensor -> what undoes it
    "exp": np.log,
    "log": np.exp,
    "neg": np.negative,
    "reciprocal": np.reciprocal,
    "rsqrt": lambda y: 1 / np.square(y),
    "sigmoid": lambda y: np.log(y) - np.log1p(-y),
    "sqrt": np.square,
    "tanh": np.arctanh,
}
# Function of a tensor and a number -> what undoes it, the tensor first or second.
UNDONE_WITH: Final[Mapping[str, tuple[Any, Any]]] = {
    "add": (lambda y, c: y - c, lambda y, c: y - c),
    "sub": (lambda y, c: y + c, lambda y, c: c - y),
    "mul": (lambda y, c: y / c, lambda y, c: y / c),
    "div": (lambda y, c: y * c, lambda y, c: c / y),
}


# Last bits by which an exporter may have erred, the least first: `exp` of numpy in float32 does by two.
REACH: Final = 2  # last bits of a number beside what leads there
OFF: Final = tuple(sign * part / 4 for part in range(11) for sign in (1, -1))


class Share(NamedTuple):
    """What a constant has of a tensor.

    Attributes:
        source: the tensor.
        values: all of its numbers, or some of its rows.
        start: the first of these rows.
    """

    source: str
    values: Array
    start: int = 0


def undone(expression: Any, made: Array) -> Array | None:
    """Return the tensor of which EXPRESSION made MADE, to the bit where it can; ``None`` where nothing does.

    It has the dtype of MADE, or float32 where numbers of that dtype do not lead to all of MADE.

    >>> undone(["add", {"key": "w"}, 1.0], np.float32([1.5, 3]))
    array([0.5, 2. ], dtype=float32)
    """
    back = way_back(expression)
    if back is None:
        return None
    with np.errstate(all="ignore"):
        exact = back(made.astype(np.float64))
        again = evaluate(expression, lambda _kind, _name: exact)
        return leading_to(made, expression, back) if rounds_to(again, made) else None


def way_back(expression: Any) -> Callable[[Array], Array] | None:
    """Return what computes the one tensor of EXPRESSION from its value, in float64; ``None`` where nothing does."""
    steps: list[Callable[[Array], Array]] = []
    while isinstance(expression, list):
        name, *parts = expression
        at = next((n for n, part in enumerate(parts) if [*tensors(part)]), None)
        if at is None:
            return None
        if len(parts) == 1 and name in UNDONE:
            steps.append(UNDONE[name])
        elif len(parts) == 2 and name in UNDONE_WITH and isinstance(parts[1 - at], float):
            steps.append(partial(UNDONE_WITH[name][at], c=parts[1 - at]))
        else:
            return None
        expression = parts[at]
    return lambda value: np.asarray(reduce(lambda it, step: step(it), steps, value))


def leading_to(made: Array, expression: Any, back: Callable[[Array], Array]) -> Array:
    """Return the numbers nearest to what BACK gives of which EXPRESSION, in float32, makes the bits of MADE.

    Where several do, no one can tell which it was; where none of those near does, it is what BACK gives, rounded.

    >>> decay = ["neg", ["exp", {"key": "w"}]]
    >>> leading_to(np.float32([-2]), decay, lambda y: np.log(-y))
    array([0.6931472], dtype=float32)
    """

    def leads(numbers: Array) -> Any:
        return evaluate(expression, lambda *_: numbers, np.float32).astype(made.dtype) == made

    wanted = made.astype(np.float64)
    found, unit = made, np.spacing(np.abs(made)).astype(np.float64)
    for dtype in dict.fromkeys((made.dtype, np.dtype("f4"))):
        found = back(wanted).astype(dtype)
        there = leads(found)
        for off in OFF:
            exact = back(wanted + off * unit)
            rounded = exact.astype(dtype)
            for other in (rounded, *neighbours(rounded, exact, REACH)):
                if there.all():
                    return found
                found = np.where(~there & (now := leads(other)), other, found)
                there |= now
    return found


def shares(expression: Any, made: Array, read: Callable[[str, str], Array]) -> list[Share] | None:
    """Return what MADE has of each tensor that EXPRESSION made it of; ``None`` where that cannot be said.

    Args:
        expression: arithmetic on tensors; see ``mlprogram.arithmetic``.
        made: its value, or one near to it.
        read: gives a tensor by its kind and its name.

    >>> found = shares(["order", {"key": "w"}, 1.0, 0.0], np.arange(4.0), lambda kind, name: np.zeros(4))
    >>> found[0].source, found[0].values.tolist()
    ('w', [2.0, 3.0, 0.0, 1.0])
    """
    found: list[Share] | None = None
    match expression:
        case {"key": name}:
            found = [Share(name, made.reshape(read("key", name).shape))]
        case ["order" | "repeat" as how, inner, *blocks]:
            found = shares(inner, first_or_ordered(how, made, blocks), read)
        case ["rows", {"key": name}, start, _]:
            found = [Share(name, made, int(start))]
        case ["picked", {"key": name}, *rows]:
            found = of_picked(name, rows, made, len(read("key", name)))
        case ["join", axis, *parts]:
            found = of_joined(parts, made, int(axis), read)
        case ["_weight_norm" | "add", {"key": name}, {"key": other}, *axis]:
            found = of_two(name, other, made, *map(int, axis), read=read)
        case _ if (back := undone(expression, made)) is not None:
            found = [Share(name, back) for name in tensors(expression)]
    return found


def first_or_ordered(how: str, made: Array, blocks: list[Any]) -> Array:
    """Return MADE before its rows were put in the ORDER of BLOCKS, or REPEATed as often as it says."""
    if how == "repeat":
        return made[: len(made) // int(blocks[0])]
    return in_order(made, *np.argsort(np.asarray(blocks, int)))


def of_picked(name: str, rows: list[Any], made: Array, count: int) -> list[Share] | None:
    """Return what MADE, ROWS of the tensor NAME as columns, has of it: all, if it has all COUNT rows."""
    if len({*rows}) != count:
        return None
    table: Array = np.zeros((count, made.size // len(rows)), made.dtype)
    table[np.asarray(rows, int)] = made.reshape(table.shape[1], -1).T
    return [Share(name, table)]


def of_two(
    name: str,
    other: str,
    made: Array,
    axis: int | None = None,
    *,
    read: Callable[[str, str], Array],
) -> list[Share]:
    """Return what MADE has of the tensor NAME, and of OTHER: their sum, or a weight with norms along AXIS."""
    if axis is None:
        return [Share(name, made - read("key", other).reshape(made.shape))]
    return [Share(name, made), Share(other, norms_of(made, axis))]


def of_joined(
    parts: Iterable[Any], made: Array, axis: int, read: Callable[[str, str], Array]
) -> list[Share] | None:
    """Return what MADE, PARTS side by side along AXIS, has of the tensors of each; see ``shares``."""
    parts = [*parts]
    sizes = [evaluate(part, read).shape[axis] for part in parts]
    cut = np.split(made, np.cumsum(sizes)[:-1], axis)
    of_each = [shares(*it, read) for it in zip(parts, cut, strict=True)]
    return None if None in of_each else [share for it in of_each for share in it or ()]


def norms_of(made: Array, axis: int) -> Array:
    """Return the norm of MADE for every index of AXIS, as many axes as it has, as PyTorch computes it.

    A weight of these norms is then MADE to the bit: PyTorch divides one by the other, which gives ones.

    >>> norms_of(np.float32([[3, 0], [4, 1]]), 1)
    array([[5., 1.]], dtype=float32)
    """
    import torch

    v = torch.from_numpy(np.ascontiguousarray(made, np.float32))
    if axis % made.ndim in (0, made.ndim - 1):  # which PyTorch has a kernel of its own for
        ones = torch.ones(
            [made.shape[it] if it == axis % made.ndim else 1 for it in range(made.ndim)]
        )
        norms = torch._weight_norm_interface(v, ones, axis % made.ndim)[1]
    else:
        norms = torch.norm_except_dim(v, 2, axis)
    return np.asarray(norms.numpy(), "f4")


def put_together(found: Iterable[Share], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """Return the tensors of these SHAPES of which FOUND has every row.

    >>> halves = [Share("w", np.float32([3, 4]), 2), Share("w", np.float32([1, 2])), Share("b", np.ones(1))]
    >>> {name: it.tolist() for name, it in put_together(halves, {"w": (4,), "b": (2,)}).items()}
    {'w': [1.0, 2.0, 3.0, 4.0]}
    """
    arrays: dict[str, Array] = {}
    lacking: dict[str, Array] = {}
    for name, values, start in found:
        shape = shapes[name]
        if values.size == prod(shape):
            arrays[name], lacking[name] = values.reshape(shape), np.zeros(1, bool)
            continue
        rows = lacking.setdefault(name, np.ones(shape[:1], bool))
        whole = arrays.setdefault(name, np.empty(shape, values.dtype))
        whole[start : start + len(values)] = values
        rows[start : start + len(values)] = False
    return {name: array for name, array in arrays.items() if not lacking[name].any()}
