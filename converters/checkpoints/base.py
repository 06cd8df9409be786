"""What every tensor file offers: headers now, bytes when asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from ...errors import BadInputError
from ..common.dtypes import NUMPY
from ..values import Array

MAX_AXES: Final = 64  # the limit of numpy
WRAPPERS: Final = {
    "module.": "DataParallel and DistributedDataParallel put",
    "_orig_mod.": "torch.compile puts",
}
CHUNK = 1 << 20  # bytes moved at a time: stays in the cache; 4 MiB took twice the processor time

Fill = Callable[[str, int, memoryview], None]


class Header(NamedTuple):
    """Dtype (a safetensors code such as ``BF16``) and shape of a stored tensor."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that the tensor takes, little-endian and C-contiguous."""
        return math.prod(self.shape) * NUMPY[self.dtype].itemsize

    def __str__(self) -> str:
        """Print as ``F32[384, 1536]``."""
        return f"{self.dtype}{list(self.shape)}"


def is_shape(sizes: Sequence[Any]) -> bool:
    """Tell whether an array can have SIZES: whole numbers, not too many and not too large.

    >>> is_shape((2, 0)), is_shape((2, -1)), is_shape((True,)), is_shape((0, 2**64))
    (True, False, False, False)
    """
    whole = all(type(size) is int and size >= 0 for size in sizes)
    return whole and len(sizes) <= MAX_AXES and math.prod(size or 1 for size in sizes) < 2**62


def different(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """Yield how the names and shapes FOUND differ from those WANTED, of headers or arrays.

    >>> list(different({"a": Header("F32", (2, 3))}, {"a": Header("F16", (3, 2))}))
    ['a: expected [2, 3], found [3, 2]']
    """
    yield from (f"{name} is missing" for name in sorted(wanted.keys() - found.keys()))
    yield from (f"{name} is unexpected" for name in sorted(found.keys() - wanted.keys()))
    for name in sorted(wanted.keys() & found.keys()):
        shapes = list(wanted[name].shape), list(found[name].shape)
        if shapes[0] != shapes[1]:
            yield f"{name}: expected {shapes[0]}, found {shapes[1]}"


def require_unwrapped(names: Collection[str], where: str) -> None:
    """Refuse a state dict of what was wrapped around a model.

    Raises:
        BadInputError: each of NAMES begins with the wrapper's own; the message says what to save.
    """
    for prefix, who in WRAPPERS.items():
        if names and all(name.startswith(prefix) for name in names):
            raise BadInputError(
                f"{where}: every tensor's name begins with {prefix}, which {who} there; save the state"
                f" dict of the model inside: model.{prefix}state_dict()"
            )


class Checkpoint(Protocol):
    """A set of named tensors on disk, whatever the format; opening one reads headers only."""

    path: Path
    metadata: Mapping[str, str]
    files: tuple[Path, ...]  # files that hold the tensors
    ignored: tuple[Path, ...]  # tensor files beside them that the index does not name

    @property
    def headers(self) -> Mapping[str, Header]:
        """Dtype and shape of every tensor."""
        ...

    def read(self, name: str) -> Array:
        """Return tensor NAME as an array of its own."""
        ...

    def stream(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
        """Yield the bytes START to STOP of tensor NAME, little-endian, in C order.

        Without STOP to the end, at most ``CHUNK`` at a time. A yielded view is valid until the next
        one is asked for. Several threads may stream at the same time.
        """
        ...


def fill(checkpoint: Checkpoint, name: str, start: int, data: memoryview) -> None:
    """Fill DATA with the bytes of tensor NAME of CHECKPOINT from START on.

    One with a ``fill`` of its own reads them there, which saves a copy of every byte.
    """
    own: Fill | None = getattr(checkpoint, "fill", None)
    if own is not None:
        own(name, start, data)
        return
    end = 0
    for piece in checkpoint.stream(name, start, start + data.nbytes):
        begin, end = end, end + piece.nbytes
        data[begin:end] = piece
