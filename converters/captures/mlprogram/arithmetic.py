"""Arithmetic on weights that an exporter does ahead of time, as text in a package's manifest.

An expression is a number, ``{"key": NAME}`` for a tensor of the source, ``{"buffer": NAME}`` for one that
the source computes itself, or a list: the name of a function, and what it is applied to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from ...values import Array
from ..interpolated.matrices import between, cubic, smooth, spread
from ..spectra.matrices import cosines, turns_between, turns_of_pairs, turns_of_real

INVERTED: Final = "_inversed_"  # in coremltools' name of a constant by which something was divided
LEAST: Final = 2.0**-24  # the least magnitude in float16


def weight_norm(v: Array, g: Array, axis: Array | int = 0) -> Array:
    """Return V with norm G for every index of AXIS (Salimans and Kingma 2016, equation 2)."""
    others = tuple(it for it in range(v.ndim) if it != int(axis) % v.ndim)
    return np.asarray(v * g / np.sqrt((v * v).sum(others, keepdims=True)))


def in_order(x: Array, *blocks: Array) -> Array:
    """Return X, its rows in as many equal BLOCKS, those in this order, such as the gates of an LSTM.

    >>> in_order(np.arange(6), 0, 2, 1).tolist()
    [0, 1, 4, 5, 2, 3]
    """
    parts = np.split(x, len(blocks))
    return np.concatenate([parts[int(block)] for block in blocks])


FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "_weight_norm": weight_norm,
    "abs": np.abs,
    "add": np.add,
    "between": between,
    "cosines": cosines,
    "cubic": cubic,
    "div": np.divide,
    "exp": np.exp,
    "join": lambda axis, *parts: np.concatenate([*map(np.atleast_1d, parts)], int(axis)),
    "log": np.log,
    "mul": np.multiply,
    "neg": np.negative,
    "order": in_order,
    "picked": lambda x, *rows: x[[int(row) for row in rows]].T,
    "pow": np.power,
    "reciprocal": np.reciprocal,
    "repeat": lambda x, times: np.tile(x, (int(times), 1)),
    "rows": lambda x, start, stop: x[int(start) : int(stop)],
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "smooth": smooth,
    "spread": spread,
    "sqrt": np.sqrt,
    "sub": np.subtract,
    "tanh": np.tanh,
    "turned": np.transpose,
    "turns_between": turns_between,
    "turns_of_pairs": turns_of_pairs,
    "turns_of_real": turns_of_real,
}


# The order of PyTorch's gates in recurrent operations; none where they are one.
GATES: Final[Mapping[str, tuple[float, ...]]] = {"lstm": (0, 1, 3, 2), "rnn": ()}
MOVES: Final = frozenset(
    {"join", "order", "picked", "repeat", "rows", "turned"}
)  # functions that make no new numbers
ONCE: Final = frozenset({"add", "mul", "sub"})


def evaluate(
    expression: Any, read: Callable[[str, str], Array], dtype: type[np.floating[Any]] = np.float64
) -> Array:
    """Return the value of EXPRESSION, computed in DTYPE.

    Args:
        expression: see above.
        read: gives a tensor by its kind, ``key`` or ``buffer``, and its name.
        dtype: float64, or float32 as exporters compute.

    Raises:
        KeyError: a function or a tensor that is not there.
        TypeError, ValueError: no expression, or shapes that do not go together.

    >>> evaluate(["add", {"key": "w"}, 1.0], lambda kind, name: np.ones(2)).tolist()
    [2.0, 2.0]
    """
    if isinstance(expression, Mapping):
        ((kind, name),) = expression.items()
        return np.asarray(read(kind, name), dtype)
    if not isinstance(expression, list):
        return np.asarray(float(expression), dtype)
    name, *parts = expression
    with np.errstate(all="ignore"):
        made = FUNCTIONS[name](*(evaluate(part, read, dtype) for part in parts))
    return np.asarray(made, dtype)


def tensors(expression: Any) -> Iterator[str]:
    """Yield the source's tensors in EXPRESSION.

    >>> list(tensors(["add", {"key": "w"}, ["exp", {"buffer": "b"}]]))
    ['w']
    """
    if isinstance(expression, Mapping):
        yield from (str(name) for kind, name in expression.items() if kind == "key")
    if isinstance(expression, list):
        for part in expression[1:]:
            yield from tensors(part)


def expressions_of(rule: Mapping[str, Any]) -> list[Any]:
    """Return what a manifest's RULE says that a constant is the value of: one expression, or several.

    >>> expressions_of({"value": 2.0, "also": [1.0]}), expressions_of({"fill": 2.0})
    ([2.0, 1.0], [])
    """
    also = rule.get("also")
    return [rule["value"], *(also if isinstance(also, list) else ())] if "value" in rule else []


def tensors_of(rule: Mapping[str, Any]) -> Iterator[str]:
    """Yield the source's tensors of which RULE says that a constant is made."""
    for expression in expressions_of(rule):
        yield from tensors(expression)


def only_moves(expression: Any) -> bool:
    """Say whether all numbers of the value of EXPRESSION are numbers of tensors of the source.

    >>> only_moves(["order", {"key": "w"}, 1, 0]), only_moves(["order", ["exp", {"key": "w"}], 1, 0])
    (True, False)
    """
    if isinstance(expression, list):
        parts = [it for it in expression[1:] if isinstance(it, list | Mapping)]
        return expression[0] in MOVES and all(map(only_moves, parts))
    return isinstance(expression, Mapping) and "key" in expression


def makes_numbers(words: str) -> bool:
    """Say whether an expression, written as WORDS, makes numbers that its tensors do not have.

    >>> makes_numbers("sub(1, g)"), makes_numbers("rows(w, 0, 8)"), makes_numbers("neg(g)"), makes_numbers("g")
    (True, False, False, False)
    """
    name, opened, _ = words.partition("(")
    return bool(opened) and name in FUNCTIONS.keys() - MOVES - {"abs", "neg"}


def rounded_once(expression: Any) -> bool:
    """Say whether each number of the value of EXPRESSION is one sum or product of numbers of two tensors.

    Every computer rounds that alike (IEEE 754-2019, section 5.4.1).

    >>> both = ["add", {"key": "b"}, {"key": "c"}]
    >>> rounded_once(["order", both, 1, 0]), rounded_once(["add", both, {"key": "d"}])
    (True, False)
    """
    if not isinstance(expression, list):
        return False
    name, *parts = expression
    if name in MOVES:
        return all(rounded_once(it) for it in parts if isinstance(it, list | Mapping))
    return name in ONCE and len(parts) == 2 and all(map(only_moves, parts))


def rounds_to(exact: Array, found: Array) -> bool:
    """Say whether EXACT numbers, computed in float32 and rounded to the dtype of FOUND, may be FOUND.

    What float16 would lose keeps the least magnitude, as coremltools has it.

    >>> rounds_to(np.array(1 / 3), np.float16(1 / 3).reshape(())), rounds_to(np.ones(2), np.zeros(2))
    (True, False)
    """
    if exact.size != found.size:
        return False
    unit = float(np.finfo(np.float32).eps) + float(np.finfo(found.dtype).eps) / 2
    least = LEAST if found.dtype == np.float16 else 0.0
    one, other = exact.reshape(-1), found.reshape(-1).astype(np.float64)
    with np.errstate(invalid="ignore"):  # infinities hide scores
        near = np.abs(one - other) <= unit * np.abs(one) + least
    return bool(((one == other) | (np.isfinite(one) & near)).all())
