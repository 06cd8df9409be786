"""Recognise a batch norm folded into the convolution before it, from the reference's values.

With scale g, shift b, mean m and variance v of the norm (Ioffe and Szegedy 2015, algorithm 2)::

    s = g / sqrt(v + eps)      weight' = s * weight (per output channel)      bias' = s * (bias - m) + b
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from ...converters.values import Array
from .candidate_tensor import CLOSE, CandidateTensor
from .reference_index import Explanation, unit

EPSILONS: Final = (1e-5, 1e-3, 1e-6, 1e-4, 1e-2, 1e-8, 0.0)  # torch's default first, then Keras's
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
    if tensor.index.arrays is None:
        return None
    channels = tensor.array.shape[0] if tensor.array.ndim else 0
    norms = list(_norms(tensor, channels))
    fold = _fold_weight if tensor.array.ndim > 1 else _fold_bias
    return next((found for norm in norms if (found := fold(tensor, norm)) is not None), None)


def _norms(tensor: CandidateTensor, channels: int) -> Iterator[Norm]:
    suffix = ".running_var"
    for name in tensor.index.same_shape((channels,)):
        if name.endswith(suffix):
            yield from _norm(tensor, name.removesuffix(suffix))


def _norm(tensor: CandidateTensor, path: str) -> Iterator[Norm]:
    arrays, known = tensor.index.arrays, tensor.index.sketches
    names = tuple(f"{path}.{field}" for field in FIELDS if f"{path}.{field}" in known)
    if arrays is None or f"{path}.running_mean" not in known:
        return
    have = {name.rsplit(".", 1)[-1]: arrays(name).astype(np.float64) for name in names}
    variance = have["running_var"]
    scale, shift = have.get("weight", np.ones(1)), have.get("bias", np.zeros(1))
    for epsilon in EPSILONS:
        factor = scale / np.sqrt(variance + epsilon)
        yield Norm(path, names, epsilon, factor, have["running_mean"], shift)


def _agree(found: Array, wanted: Array, u: float) -> bool:
    gap = np.linalg.norm(found.astype(np.float64) - wanted)
    return bool(gap <= CLOSE * u * np.linalg.norm(wanted))


def _fold_weight(tensor: CandidateTensor, norm: Norm) -> Explanation | None:
    if tensor.index.arrays is None:
        return None
    factor = norm.factor.reshape(-1, *[1] * (tensor.array.ndim - 1))
    for name in tensor.peers:
        base = tensor.index.arrays(name).astype(np.float64).reshape(tensor.array.shape)
        if _agree(tensor.array, base * factor, unit(tensor.array, tensor.index.sketches[name])):
            return _folded(tensor, norm, name)
    return None


def _fold_bias(tensor: CandidateTensor, norm: Norm) -> Explanation | None:
    if tensor.index.arrays is None:
        return None
    u = unit(tensor.array, tensor.index.sketches[norm.names[-1]])
    if _agree(tensor.array, norm.shift - norm.factor * norm.mean, u):
        return _folded(tensor, norm, f"{norm.path}.running_mean")
    for name in tensor.peers:
        bias = tensor.index.arrays(name).astype(np.float64).reshape(tensor.array.shape)
        if _agree(tensor.array, norm.factor * (bias - norm.mean) + norm.shift, u):
            return _folded(tensor, norm, name)
    return None


def _folded(tensor: CandidateTensor, norm: Norm, source: str) -> Explanation:
    detail = f"{source} with batch norm {norm.path} folded in (eps {norm.epsilon:g})"
    return tensor.explanation(source, "folded", detail, ok=True)._replace(also=norm.names)
