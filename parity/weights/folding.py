"""Recognise a batch norm folded into the convolution before it, from the reference's values.

With scale g, shift b, mean m and variance v of the norm (Ioffe and Szegedy 2015, algorithm 2)::

    s = g / sqrt(v + eps)      weight' = s * weight (per output channel)      bias' = s * (bias - m) + b
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np

from ...converters.values import Array
from .candidate_tensor import CLOSE, CandidateTensor
from .reference_index import Explanation, unit

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
    read, channels = tensor.index.arrays, tensor.array.shape[:1]
    if read is None or not channels:
        return None
    for norm in _norms(tensor, read, channels):
        for source, wanted in _folds(tensor, read, norm):
            like = source if tensor.array.ndim > 1 else norm.names[-1]
            if _agree(tensor.array, wanted, unit(tensor.array, tensor.index.sketches[like])):
                detail = f"{source} with batch norm {norm.path} folded in (eps {norm.epsilon:g})"
                found = tensor.explanation(source, "folded", detail, ok=True)
                return found._replace(also=norm.names)
    return None


def _norms(tensor: CandidateTensor, read: Read, channels: tuple[int, ...]) -> Iterator[Norm]:
    known = tensor.index.sketches
    for variance in tensor.index.same_shape(channels):
        path = variance.removesuffix(".running_var")
        if path == variance or f"{path}.running_mean" not in known:
            continue
        names = tuple(f"{path}.{field}" for field in FIELDS if f"{path}.{field}" in known)
        have = {name.rsplit(".", 1)[-1]: read(name).astype(np.float64) for name in names}
        scale, shift = have.get("weight", np.ones(1)), have.get("bias", np.zeros(1))
        for epsilon in EPSILONS:
            factor = scale / np.sqrt(have["running_var"] + epsilon)
            yield Norm(path, names, epsilon, factor, have["running_mean"], shift)


def _folds(tensor: CandidateTensor, read: Read, norm: Norm) -> Iterator[tuple[str, Array]]:
    """Yield what NORM makes of every weight or bias of the TENSOR's shape, and of no bias."""
    shape, is_bias = tensor.array.shape, tensor.array.ndim == 1
    if is_bias:
        yield f"{norm.path}.running_mean", norm.shift - norm.factor * norm.mean
    factor = norm.factor.reshape(-1, *[1] * (len(shape) - 1))
    for name in tensor.peers:
        base = read(name).astype(np.float64).reshape(shape)
        yield name, factor * (base - norm.mean) + norm.shift if is_bias else factor * base


def _agree(found: Array, wanted: Array, u: float) -> bool:
    gap = np.linalg.norm(found.astype(np.float64) - wanted)
    return bool(gap <= CLOSE * u * np.linalg.norm(wanted))
