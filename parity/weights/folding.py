"""Recognise a batch norm folded into the convolution before it, from the reference's values.

With scale g, shift b, mean m and variance v of the norm (Ioffe and Szegedy 2015, algorithm 2)::

    s = g / sqrt(v + eps)      weight' = s * weight (per output channel)      bias' = s * (bias - m) + b
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np

from ...converters.captures.mlprogram.arithmetic import LEAST
from ...converters.values import Array
from .candidate_tensor import CLOSE, CandidateTensor
from .reference_index import Explanation, unit
from .sketches.casts import roundoff

EPSILONS: Final = (1e-5, 1e-3, 1e-6, 1e-4, 1e-2, 1e-8, 0.0)  # torch's default first, then Keras's
Read = Callable[[str], Array]
FIELDS: Final = ("weight", "bias", "running_mean", "running_var")


class Norm(NamedTuple):
    """A batch norm of the reference at one epsilon, as a factor and what it needs for a shift."""

    path: str
    names: tuple[str, ...]
    epsilon: float
    factor: Array
    mean: Array
    shift: Array


def explain_folded(tensor: CandidateTensor) -> Explanation | None:
    """Explain the TENSOR as a weight or bias with a batch norm inside."""
    read = tensor.index.arrays
    if read is None:
        return None
    for size in dict.fromkeys(tensor.array.shape[:2]):  # a transposed kernel has its outputs second
        for norm in _norms(tensor, read, size):
            for source, wanted in _folds(tensor, read, norm):
                like = source if tensor.array.ndim > 1 else norm.names[-1]
                if agree(tensor.array, wanted, unit(tensor.array, tensor.index.sketches[like])):
                    detail = (
                        f"{source} with batch norm {norm.path} folded in (eps {norm.epsilon:g})"
                    )
                    found = tensor.explanation(source, "folded", detail, ok=True)
                    return found._replace(also=norm.names)
    return None


def _norms(tensor: CandidateTensor, read: Read, channels: int) -> Iterator[Norm]:
    known = tensor.index.sketches
    for variance in tensor.index.same_shape((channels,)):
        path = variance.removesuffix(".running_var")
        if path != variance and f"{path}.running_mean" in known:
            names = tuple(f"{path}.{field}" for field in FIELDS if f"{path}.{field}" in known)
            yield from (norm_of(names, read, epsilon) for epsilon in EPSILONS)


def norm_of(names: tuple[str, ...], read: Read, epsilon: float) -> Norm:
    """Return the batch norm whose tensors have these NAMES."""
    path = names[0].rpartition(".")[0]
    have = {name.rsplit(".", 1)[-1]: read(name).astype(np.float64) for name in names}
    scale, shift = have.get("weight", np.ones(1)), have.get("bias", np.zeros(1))
    factor = scale / np.sqrt(have["running_var"] + epsilon)
    return Norm(path, names, epsilon, factor, have["running_mean"], shift)


def _folds(tensor: CandidateTensor, read: Read, norm: Norm) -> Iterator[tuple[str, Array]]:
    """Yield what NORM makes of every weight or bias of the TENSOR's shape, and of no bias."""
    if tensor.array.ndim == 1:
        yield f"{norm.path}.running_mean", norm.shift - norm.factor * norm.mean
    for name in tensor.peers:
        base = read(name).astype(np.float64).reshape(tensor.array.shape)
        yield from ((name, wanted) for wanted in folded(norm, base))


def folded(norm: Norm, base: Array) -> Iterator[Array]:
    """Yield what NORM makes of BASE: a bias, or a weight with its outputs along the first or second axis."""
    if base.ndim == 1:
        yield norm.factor * (base - norm.mean) + norm.shift
    for axis in (0, 1) if base.ndim > 1 else ():
        if norm.factor.size in (1, base.shape[axis]):
            yield base * norm.factor.reshape(*[-1 if it == axis else 1 for it in range(base.ndim)])


def unfolded(it: Explanation, read: Read, epsilon: float) -> Iterator[Array]:
    """Yield the float64 values that the folded tensor of IT may have, for a norm of this EPSILON."""
    norm = norm_of(it.also, read, epsilon)
    if it.source == f"{norm.path}.running_mean":
        yield norm.shift - norm.factor * norm.mean
    elif it.source:
        yield from folded(norm, read(it.source).astype(np.float64))


def agree(found: Array, wanted: Array, u: float) -> bool:
    """Say whether FOUND is WANTED but for a few roundings.

    These are of unit U on the scale of each number; in float32, in which it was computed, on that of them all.

    >>> agree(np.float16([1, 1e-3]), np.array([1, 1e-3]), 2**-11)
    True
    >>> agree(np.float16([1, 2e-3]), np.array([1, 1e-3]), 2**-11)
    False
    >>> agree(np.float32([1, -3e38]), np.array([1, -1e308]), 2**-24)
    False
    """
    with np.errstate(over="ignore"):
        size = np.linalg.norm(wanted)
    if not np.isfinite(size):  # a mask in float64, say: nothing that float32 has is near
        return False
    gap = np.abs(found.astype(np.float64) - wanted)
    least = LEAST if found.dtype == np.float16 else 0.0
    each = CLOSE * (u * np.abs(wanted) + roundoff("F32") * size) + least
    return bool(np.linalg.norm(gap) <= CLOSE * u * size and (gap <= each).all())
