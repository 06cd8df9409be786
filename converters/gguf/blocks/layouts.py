"""What a block of each ggml type is made of, byte by byte (ggml-common.h of llama.cpp)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from ...quantization import Scheme

NIBBLES: Final = "V16"  # 32 codes of 4 bits: copied whole, which numpy does at once


class Layout(NamedTuple):
    """A ggml type whose blocks MLX's parts hold exactly.

    Attributes:
        scheme: what they are in MLX.
        record: of one block: ``d`` scale, ``m`` minimum, ``h`` highest bits, ``q`` codes, ``s``
            scales and minima of a K type.
        center: the code that stands for zero where there is no minimum.
        size: codes in a block.
    """

    scheme: Scheme
    record: np.dtype[Any]
    center: int | None = None
    size: int = 32


def _record(*fields: tuple[Any, ...]) -> np.dtype[Any]:
    return np.dtype(list(fields))


D, M, HIGH, CODES = ("d", "<f2"), ("m", "<f2"), ("h", "u1", 4), ("q", NIBBLES)
K_SCALES: Final = ("s", "u1", 12)
BLOCKS: Final[Mapping[str, Layout]] = {
    "Q4_0": Layout(Scheme(4, 32), _record(D, CODES), 8),
    "Q4_1": Layout(Scheme(4, 32), _record(D, M, CODES)),
    "Q5_0": Layout(Scheme(5, 32), _record(D, HIGH, CODES), 16),
    "Q5_1": Layout(Scheme(5, 32), _record(D, M, HIGH, CODES)),
    "Q8_0": Layout(Scheme(8, 32), _record(D, ("q", "i1", 32)), 128),
    "MXFP4": Layout(Scheme(4, 32, "mxfp4"), _record(("d", "u1"), CODES)),
    "NVFP4": Layout(Scheme(4, 16, "nvfp4"), _record(("d", "u1", 4), ("q", "u1", 32)), size=64),
    "Q4_K": Layout(Scheme(4, 32), _record(D, M, K_SCALES, ("q", "u1", (4, 32))), size=256),
    "Q5_K": Layout(
        Scheme(5, 32), _record(D, M, K_SCALES, ("h", "u1", 32), ("q", "u1", (4, 32))), size=256
    ),
}
