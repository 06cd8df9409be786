"""The factors of adapters: made, brought in from updates, and taken out again."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final

import mlx.core as mx
import numpy as np

from .....errors import MismatchError
from ....values import Array, LowRank

FACTORS: Final = ("lora_a", "lora_b", "lora_m")
Factors = list[mx.array]  # lora_a, lora_b, and lora_m of DoRA


def beside(name: str, part: str) -> str:
    """Return what PART that stands beside the weight NAME is called.

    >>> beside("up.weight", "lora_a"), beside("experts.down_proj", "scales"), beside("weight", "scales")
    ('up.lora_a', 'experts.down_proj_scales', 'scales')
    """
    holder, dot, leaf = name.rpartition(".")
    return f"{holder}{dot}{part if leaf == 'weight' else f'{leaf}_{part}'}"


def _wide(dtype: mx.Dtype) -> mx.Dtype:
    """Return the dtype of factors beside a weight of DTYPE: 16 bits are too few to be trained in."""
    return mx.float64 if dtype == mx.float64 else mx.float32


def initial(
    shape: tuple[int, ...], dtype: mx.Dtype, rank: int, key: mx.array, *, embedding: bool
) -> Factors:
    """Return ``lora_a`` uniform within 1 / sqrt(in), and ``lora_b`` zero: the update starts at 0."""
    into, out = (shape[0], shape[1]) if embedding else (math.prod(shape[1:]), shape[0])
    bound = 1 / math.sqrt(into)
    a = mx.random.uniform(-bound, bound, (into, rank), key=key)
    return [a.astype(_wide(dtype)), mx.zeros((rank, out), _wide(dtype))]


def lengths(weight: mx.array) -> mx.array:
    """Return the length of each row of WEIGHT: DoRA's magnitudes when nothing is trained yet."""
    wide = weight.astype(_wide(weight.dtype))
    return mx.linalg.norm(wide.reshape(len(wide), -1), axis=1)


def of_update(update: LowRank, dtype: mx.Dtype, *, embedding: bool) -> Factors:
    """Return the factors of UPDATE, which lies as its weight of DTYPE."""
    turned = (np.swapaxes(update.a, -1, -2), np.swapaxes(update.b, -1, -2))
    pair = (update.b, update.a) if embedding else turned
    arrays = [*pair] if update.magnitude is None else [*pair, update.magnitude]
    return [_array(array, _wide(dtype)) for array in arrays]


def as_update(factors: Factors, scale: float, *, embedding: bool) -> LowRank:
    """Return what :func:`of_update` has taken apart."""
    down, up, *rest = (np.array(array) for array in factors)
    pair = (up, down) if embedding else (np.swapaxes(down, -1, -2), np.swapaxes(up, -1, -2))
    return LowRank(*pair, scale, *rest)


def _array(array: Array, dtype: mx.Dtype) -> mx.array:
    kind = np.float64 if dtype == mx.float64 else np.float32
    return mx.array(array.astype(kind), dtype=dtype)


def check_names(wanted: Iterable[str], available: Iterable[str]) -> None:
    """Refuse weights that no adapter can change, all together."""
    known = list(available)
    problems = []
    for name in sorted(set(wanted) - set(known)):
        near = get_close_matches(name, known, 1, cutoff=0.4)
        hint = f", did you mean {near[0]}?" if near else ""
        problems.append(f"{name} is no weight of a linear layer, embedding or convolution{hint}")
    if problems:
        raise MismatchError("adapters do not fit the captured module", problems)


def check_shapes(updates: Mapping[str, LowRank], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that each of UPDATES has as many rows and columns as its weight, kernel axes in one.

    Raises:
        MismatchError: all that have not are listed.
    """
    problems = [
        f"{name}: expected an update of {list(shapes[name])}, found {list(update.shape)}"
        for name, update in sorted(updates.items())
        if update.shape not in (shapes[name], _flat(shapes[name]))
    ]
    if problems:
        raise MismatchError("adapters do not fit the captured module", problems)


def _flat(shape: tuple[int, ...]) -> tuple[Any, ...]:
    return (shape[0], math.prod(shape[1:]))
