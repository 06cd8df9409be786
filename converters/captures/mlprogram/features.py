"""Inputs and outputs of an ML program, and arrays checked against them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ....errors import MismatchError
from ...values import Array

Dimension = int | str


class Feature(NamedTuple):
    """Dtype and shape of an input or output.

    Attributes:
        dtype: a numpy name.
        shape: sizes; a size that may vary is a string, ``1..512`` or ``16|32|64``; ``?`` is unknown.
    """

    dtype: str
    shape: tuple[Dimension, ...]

    def __str__(self) -> str:
        """Print as ``int32[1..4, 128]``."""
        return f"{self.dtype}[{', '.join(str(size) for size in self.shape)}]"


def allows(dimension: Dimension, size: int) -> bool:
    """Say whether SIZE is one that DIMENSION allows.

    >>> [allows("2..4", 3), allows("2..", 9), allows("16|32", 8), allows(5, 5), allows("?", 1)]
    [True, True, False, True, True]
    """
    if isinstance(dimension, int):
        return size == dimension
    if ".." in dimension:
        low, _, high = dimension.partition("..")
        return int(low) <= size and (not high or size <= int(high))
    return dimension == "?" or str(size) in dimension.split("|")


def flexible(multi_array: Any, declared: tuple[Dimension, ...]) -> tuple[Dimension, ...]:
    """Return the shape that a description's ``multiArrayType`` allows.

    DECLARED is the shape in the program, whose flexible sizes are unknown.
    """
    kind = multi_array.WhichOneof("ShapeFlexibility")
    if kind == "shapeRange":
        bounds = [(r.lowerBound, r.upperBound) for r in multi_array.shapeRange.sizeRanges]
        return tuple(
            low if low == high else f"{low}..{high if high > 0 else ''}" for low, high in bounds
        )
    if kind == "enumeratedShapes":
        shapes = [tuple(shape.shape) for shape in multi_array.enumeratedShapes.shapes]
        choices = [sorted(set(sizes)) for sizes in zip(*shapes, strict=True)]
        return tuple(
            sizes[0] if len(sizes) == 1 else "|".join(str(size) for size in sizes)
            for sizes in choices
        )
    return declared


def suits(array: Array, dtype: str) -> bool:
    """Say whether ARRAY may stand for an input of DTYPE: no fractions for integers."""
    return array.dtype.kind in "fiub" if dtype.startswith("float") else array.dtype.kind in "iub"


def check_inputs(features: Mapping[str, Feature], inputs: Mapping[str, Array]) -> None:
    """Refuse INPUTS that do not fit, with all problems together.

    Raises:
        MismatchError: names missing or unknown, dtypes or shapes that do not fit.
    """
    problems = [f"{name} is missing" for name in features if name not in inputs]
    problems += [unknown(name, features) for name in inputs if name not in features]
    for name, feature in features.items():
        if name in inputs:
            problems += misfits(name, feature, np.asarray(inputs[name]))
    if problems:
        expected = ", ".join(f"{name} {feature}" for name, feature in features.items())
        raise MismatchError(f"inputs do not fit, expected {expected}", problems)


def fits(features: Mapping[str, Feature], inputs: Mapping[str, Array]) -> bool:
    """Say whether INPUTS are those of FEATURES, as ``check_inputs`` takes them."""
    return features.keys() == inputs.keys() and not any(
        misfits(name, feature, np.asarray(inputs[name])) for name, feature in features.items()
    )


def unknown(name: str, known: Iterable[str]) -> str:
    """Say that NAME is unknown, and which known name is nearest."""
    near = difflib.get_close_matches(name, list(known), 1)
    return f"{name} is no input" + (f"; did you mean {near[0]}?" if near else "")


def misfits(name: str, feature: Feature, array: Array) -> list[str]:
    """Return what is wrong with ARRAY as input NAME."""
    problems = []
    if not suits(array, feature.dtype):
        problems.append(f"{name} is {array.dtype}, expected {feature.dtype}")
    fits = len(array.shape) == len(feature.shape) and all(map(allows, feature.shape, array.shape))
    if not fits:
        problems.append(f"{name} has shape {list(array.shape)}, expected {feature}")
    return problems
