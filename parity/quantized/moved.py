"""Weights that a format could not hold as they were: does each lie where it is stated to lie?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from ...converters.checkpoints import Checkpoint
from ...converters.quantization import Dequantized, Scheme
from ...converters.quantization.codebooks import GLOBAL, SCALES, gaps
from ...converters.quantization.mlx import Parts, rounding
from ...converters.values import Array
from ..check.verdict import Stage

NAME: Final = "moved"
MARGIN: Final = 1e-4  # of what was said: it is printed in fewer digits, and values are float32
HALF: Final = 2  # bytes of a 16-bit number
SHOWN: Final = 3  # weights that a line names


def moved_stage(source: Dequantized, there: Checkpoint, stated: Mapping[str, float]) -> Stage:
    """Return the stage that holds weights THERE against those of SOURCE, that are STATED to move.

    Args:
        source: quantized, seen dense.
        there: the target's weights by the names and in the layout of SOURCE, dense.
        stated: by weight, how far it may lie from the source's, in steps.

    What is stated beyond the rounding of a weight's scales proves nothing: it is UNVERIFIED.

    A step is the scale of a group of an affine scheme, and of another one its scale times the largest gap
    between codes.
    """
    found = {name: moves(source, there.read(name), name) for name in stated}
    wrong = [name for name in stated if not found[name] <= stated[name] * (1 + MARGIN)]
    figures: dict[str, Any] = {"moved": found, "stated": dict(stated)}
    if wrong:
        some = "; ".join(
            f"{name} by {found[name]:.2g} of a step, stated {stated[name]:.2g}"
            for name in wrong[:SHOWN]
        )
        return Stage(
            NAME, "fail", f"{len(wrong)} weights moved further than stated: {some}", figures
        )
    if far := [name for name in stated if stated[name] > rounding_of(source, name) * (1 + MARGIN)]:
        some = "; ".join(f"{name} by {found[name]:.2g} of a step" for name in far[:SHOWN])
        return Stage(
            NAME, "unverified", f"{len(far)} weights moved beyond rounding: {some}", figures
        )
    worst = max(found, key=lambda name: found[name])
    detail = f"{len(found)} weights moved, {worst} the furthest: by {found[worst]:.2g} of a step"
    return Stage(NAME, "pass", f"{detail}, no further than the format makes them", figures)


def rounding_of(source: Dequantized, name: str) -> float:
    """Return how far MLX itself rounds the weight NAME of SOURCE, in steps."""
    scales = source.raw.headers[source.part_names(name)["scales"]]
    return rounding(source.schemes[name], scales.dtype)


def moves(source: Dequantized, values: Array, name: str) -> float:
    """Return how far VALUES lie from the weight NAME of SOURCE, in steps of their groups, at most."""
    return max(differences(source, values, name), default=0.0)


def differences(source: Dequantized, values: Array, name: str) -> Iterator[float]:
    """Yield the largest difference in steps, some rows at a time."""
    rows, scheme = values.reshape(-1, values.shape[-1]), source.schemes[name]
    start = 0
    for parts, exact, _ in source.pieces(name):
        some = rows[start : start + len(exact)].astype(np.float64)
        start += len(exact)
        steps = np.repeat(step_of(parts, scheme), scheme.group_size, axis=-1)
        apart = np.maximum(np.abs(some - exact) - rounded(parts, scheme, exact, some), 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(apart == 0, 0.0, apart / steps)
        yield float(np.max(np.nan_to_num(share, nan=np.inf), initial=0.0))


def rounded(parts: Parts, scheme: Scheme, exact: Array, there: Array) -> Array:
    """Return how far what is compared was rounded: EXACT, made of PARTS, and what is THERE.

    float32 holds either value to half a last place, and the product of a zero point and a scale, which is
    read as a bias, as well; where scales have 16 bits that product is exact.
    """
    last = np.finfo(np.float32).eps
    room: Array = last * np.maximum(np.abs(exact), np.abs(there))
    if scheme.affine and parts["scales"].dtype.itemsize > HALF:
        room = room + np.repeat(last / 2 * np.abs(parts["biases"]), scheme.group_size, axis=-1)
    return room


def step_of(parts: Parts, scheme: Scheme) -> Array:
    """Return how far neighbouring values of each group of PARTS may be apart, in float64."""
    if scheme.affine:
        return np.abs(parts["scales"].astype(np.float64))
    table = SCALES[scheme.mode].astype(np.float64)
    steps: Array = table[parts["scales"]] * float(gaps(scheme.mode).max())
    factor = parts.get("global_scale")
    return steps if factor is None else steps * (factor / GLOBAL)[:, None]
