"""Classes of MLX libraries whose weights stay on disk until they are used.

A module reads a weight each time it asks itself for it, and computes what it returns before the next
module runs: then nothing needs the weight any more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache, wraps
from typing import Any, Final

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.utils import tree_flatten

from ...checkpoints.base import Checkpoint
from ...common.arrays import to_mlx
from ...common.dtypes import NUMPY
from ...values import Array

READERS: Final = "_weighbridge_readers"  # an attribute, none of MLX's parameters
BLOCK: Final = 8 << 20  # bytes in float32 that are read at a time: more leave the cache

NARROW: Final = (mx.bfloat16, mx.float16)


class Stored:
    """A parameter that is a tensor of a checkpoint as it lies.

    Attributes:
        shape: its shape.
        nbytes: what it takes in float32, or in the dtype of the computation where that is wider.
    """

    def __init__(self, checkpoint: Checkpoint, name: str, dtype: mx.Dtype | None) -> None:
        """Read tensor NAME of CHECKPOINT; DTYPE is the one to compute in, ``None`` for its own."""
        self._checkpoint, self._name, self._dtype = checkpoint, name, dtype
        self._header = checkpoint.headers[name]
        self.shape = self._header.shape
        width = dtype.size if dtype else NUMPY[self._header.dtype].itemsize
        self.nbytes = math.prod(self.shape) * max(width, mx.float32.size)

    def __call__(self) -> mx.array:
        """Return all of it."""
        return self._cast(self._checkpoint.read(self._name))

    def rows(self, start: int, stop: int) -> mx.array:
        """Return rows START to STOP."""
        return self._cast(self._read(start, stop))

    def picked(self, rows: Array) -> mx.array:
        """Return ROWS, each read by itself."""
        return self._cast(np.concatenate([self._read(row, row + 1) for row in rows.tolist()]))

    def blocks(self) -> list[tuple[int, int]]:
        """Return the rows that are read together."""
        count = self.shape[0]
        step = max(1, count * BLOCK // max(self.nbytes, 1))
        return [(start, min(start + step, count)) for start in range(0, count, step)]

    def _read(self, start: int, stop: int) -> Array:
        width = self._header.nbytes // max(self.shape[0], 1)
        data, at = np.empty((stop - start) * width, np.uint8), 0
        for view in self._checkpoint.stream(self._name, start * width, stop * width):
            data[at : at + view.nbytes] = view
            at += view.nbytes
        return data.view(NUMPY[self._header.dtype]).reshape(stop - start, *self.shape[1:])

    def _cast(self, array: Array) -> mx.array:
        found = to_mlx(array)
        return found if self._dtype is None else found.astype(self._dtype)


def put_on_disk(module: nn.Module, readers: Mapping[str, Stored]) -> None:
    """Let MODULE read the parameters that READERS names when it uses them, and drop its own."""
    owners: dict[str, dict[str, Stored]] = {}
    for name, reader in readers.items():
        path, _, leaf = name.rpartition(".")
        owners.setdefault(path, {})[leaf] = reader
    for path, child in module.named_modules():
        if path in owners:
            for leaf in owners[path]:
                dict.__setitem__(child, leaf, mx.array(0))
            object.__setattr__(child, READERS, owners[path])
            kind: Any = type(child)
            child.__class__ = on_disk(kind)


def reads_weights(module: nn.Module) -> bool:
    """Say whether MODULE reads its weights when it uses them."""
    return any(READERS in vars(child) for child in module.modules())


@cache
def on_disk(kind: type[Any]) -> type[Any]:
    """Return the class KIND, except that it reads its weights when it uses them."""

    def reader(self: Any, key: Any) -> Stored | None:
        found: Stored | None = object.__getattribute__(self, READERS).get(key)
        return found

    def getattribute(self: Any, key: str) -> Any:
        found = reader(self, key)
        return found() if found else kind.__getattr__(self, key)

    def getitem(self: Any, key: str) -> Any:
        found = reader(self, key)
        return found() if found else dict.__getitem__(self, key)

    @wraps(kind.__call__)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = by_rows(self, kind, *args) if args and not kwargs else None
        result = kind.__call__(self, *args, **kwargs) if result is None else result
        arrays: Any = tree_flatten(result)
        mx.eval([array for _, array in arrays if isinstance(array, mx.array)])
        return result

    own: dict[str, Any] = {"__getattr__": getattribute, "__getitem__": getitem, "__call__": call}
    if issubclass(kind, nn.Embedding):
        own["as_linear"] = as_linear
    return type(kind.__name__, (kind,), own)


def by_rows(module: Any, kind: type[Any], x: Any, *rest: Any) -> mx.array | None:
    """Return what a large linear layer or embedding does, some rows at a time; ``None`` of others."""
    weight = object.__getattribute__(module, READERS).get("weight")
    if rest or weight is None or weight.nbytes <= BLOCK or kind not in (nn.Linear, nn.Embedding):
        return None
    if kind is nn.Embedding:
        rows, places = np.unique(np.array(x), return_inverse=True)
        found: mx.array = weight.picked(rows)[mx.array(places.reshape(x.shape))]
        return found
    return product(x, weight, module.bias if "bias" in module else None)


def as_linear(module: Any, x: mx.array) -> mx.array:
    """Multiply by the rows of an embedding."""
    return product(x, object.__getattribute__(module, READERS)["weight"])


def product(x: mx.array, weight: Stored, bias: mx.array | None = None) -> mx.array:
    """Return X times the transposed WEIGHT, plus BIAS, some rows of the weight at a time.

    In 16 bits sums are in float32 and rounded once, as in MLX's own kernels, by the faster float32 one.
    """
    parts = []
    for start, stop in weight.blocks():
        rows = weight.rows(start, stop)
        wide = mx.float32 if x.dtype == rows.dtype and rows.dtype in NARROW else None
        part = x.astype(wide) @ rows.astype(wide).T if wide else x @ rows.T
        part = part if bias is None else part + bias[start:stop]
        parts.append(part.astype(x.dtype) if wide else part)
        mx.eval(parts[-1])
    return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=-1)


def readers_of(
    parameters: Mapping[str, mx.array],
    sources: Mapping[str, str],
    checkpoint: Checkpoint,
    dtype_of: Callable[[str, mx.Dtype], mx.Dtype],
) -> dict[str, Stored]:
    """Return what reads each of PARAMETERS.

    Args:
        parameters: of a module, unread arrays of the dtypes in the files.
        sources: the tensor of CHECKPOINT that each of them is.
        checkpoint: in MLX's layout.
        dtype_of: the dtype in which a parameter takes part, from its name and its own dtype.
    """
    return {
        name: Stored(checkpoint, sources[name], dtype_of(name, array.dtype))
        for name, array in parameters.items()
    }
