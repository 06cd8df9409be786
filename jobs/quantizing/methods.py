"""How codes are chosen: as MLX chooses them, or better."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

import numpy as np

from ...converters.common.dtypes import NUMPY
from ...converters.quantization import Scheme, quantize, search
from ...converters.quantization.affine import encode
from ...converters.values import Array

# Rows of floating-point numbers, ``(rows, columns)``, in C order; how; safetensors code of the
# scales -> the parts that store them, by part. Called by several threads.
Encode = Callable[[Array, Scheme, str], dict[str, Array]]
SAMPLE: Final = (64, 512)  # groups and columns on which ours is held against MLX's


def as_mlx(values: Array, scheme: Scheme, dtype: str) -> dict[str, Array]:
    """Return the parts that ``mx.quantize`` makes of VALUES, cast to DTYPE, on a CPU: the same bits."""
    cast = values.astype(NUMPY[dtype], copy=False)
    if scheme.affine and agrees(scheme, dtype):
        made = encode(cast.reshape(-1, scheme.group_size), scheme)
        if made is not None:
            rows = len(values)
            return {part: array.reshape(rows, -1) for part, array in made.items()}
    return by_mlx(cast, scheme, dtype)


def by_mlx(values: Array, scheme: Scheme, dtype: str) -> dict[str, Array]:
    """Return what ``mx.quantize`` itself makes of VALUES on a CPU, in whatever thread."""
    import mlx.core as mx

    with mx.stream(mx.new_thread_local_stream(mx.cpu)):
        return quantize(values, scheme, dtype)


@cache
def agrees(scheme: Scheme, dtype: str) -> bool:
    """Say whether the MLX that is installed chooses as ours does; a later one may choose otherwise."""
    sample = np.random.default_rng(0).standard_normal(SAMPLE).astype(NUMPY[dtype])
    expected = by_mlx(sample, scheme, dtype)
    made = encode(sample.reshape(-1, scheme.group_size), scheme) or {}
    return all(made[part].tobytes() == array.tobytes() for part, array in expected.items())


def searched(values: Array, scheme: Scheme, dtype: str) -> dict[str, Array]:
    """Return parts of VALUES with searched scales: at most the error of ``mx.quantize``."""
    return search.encode(values.astype(np.float32), scheme, dtype, threads=1)


METHODS: Final[Mapping[str, Encode]] = {"search": searched, "mlx": as_mlx}
