"""A quantized weight on its way through a captured graph.

Steps that have a quantized form take it as it is; any other sees the dense array that it stands for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import mlx.core as mx

from ....common.arrays import to_mlx
from ....quantization import Blocks
from ....quantization.scheme import Scheme


class Parts(NamedTuple):
    """MLX's parts: words of codes, scales, and the biases of an affine scheme."""

    weight: mx.array
    scales: mx.array
    biases: mx.array | None = None


@dataclass(frozen=True)
class Quantized:
    """A quantized weight, or one that was made of it without touching a code.

    Attributes:
        parts: as stored, columns along the last axis.
        scheme: what they mean.
        dtype: of the dense weight.
        turned: whether the last two axes are swapped.
        chosen: which of the stacked matrices, one-dimensional; ``None`` for all as they are.
    """

    parts: Parts
    scheme: Scheme
    dtype: mx.Dtype
    turned: bool = False
    chosen: mx.array | None = None

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.parts.weight.ndim

    @property
    def transposed(self) -> Quantized:
        """The same with the last two axes swapped."""
        return replace(self, turned=not self.turned)

    def at(self, indices: mx.array) -> Quantized:
        """Return what lies at INDICES of the first axis, codes and scales gathered."""
        weight, scales, biases = self.parts
        some = None if biases is None else biases[indices]
        return replace(self, parts=Parts(weight[indices], scales[indices], some))

    def dense(self) -> mx.array:
        """Return the canonical values, computed in float32 and rounded to the dtype once."""
        weight, scales, biases = self.parts if self.chosen is None else self.at(self.chosen).parts
        if self.scheme.affine:
            scales = scales.astype(mx.float32)
            biases = None if biases is None else biases.astype(mx.float32)
        values = mx.dequantize(weight, scales, biases, **self.scheme.record, dtype=mx.float32)
        return (mx.swapaxes(values, -1, -2) if self.turned else values).astype(self.dtype)

    def after(self, x: mx.array) -> mx.array:
        """Return ``x @ self``."""
        count = self.parts.weight.shape[0] if self.chosen is None else len(self.chosen)
        fits = x.ndim >= 2 if self.ndim == 2 else x.ndim == 3 and len(x) == count
        if not fits or x.dtype == mx.float64 or not mx.issubdtype(x.dtype, mx.floating):
            return x @ self.dense().astype(x.dtype)
        named = {"transpose": self.turned, **self.scheme.record}
        if self.chosen is None:
            return mx.quantized_matmul(x, *self.parts, **named)
        return mx.gather_qmm(x, *self.parts, rhs_indices=self.chosen, **named)


def quantized_of(blocks: Blocks, dtype: mx.Dtype) -> Quantized:
    """Return BLOCKS, without a global scale, as a weight that stands for a dense one of DTYPE."""
    parts = Parts(**{part: to_mlx(array) for part, array in blocks.parts.items()})
    return Quantized(parts, blocks.scheme, dtype)


class Values(dict[str, Any]):
    """Values of a graph by name; whoever looks one up that is quantized gets it dense."""

    def __getitem__(self, name: str) -> Any:
        """Return the value called NAME."""
        value = super().__getitem__(name)
        return value.dense() if isinstance(value, Quantized) else value


def held(values: Any, name: str) -> Any:
    """Return the value called NAME as it is, quantized or not."""
    return dict.__getitem__(values, name)
