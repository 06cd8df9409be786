"""Codes and scales are worth what MLX makes of them."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from weighbridge.converters.quantization.codebooks import CODES, SCALES, gaps

GROUPS = {"mxfp4": 32, "mxfp8": 32, "nvfp4": 16}


def dequantized(mode, codes, scales):
    """Return what MLX makes of CODES, a group of them for each of SCALES."""
    bits = 8 if mode == "mxfp8" else 4
    packed = codes if bits == 8 else codes[:, 0::2] | codes[:, 1::2] << 4
    words = mx.array(np.ascontiguousarray(packed).view(np.uint32))
    found = mx.dequantize(
        words, mx.array(scales), group_size=GROUPS[mode], bits=bits, mode=mode, dtype=mx.float32
    )
    return np.array(found)


@pytest.mark.parametrize("mode", CODES)
def test_every_code_is_worth_what_mlx_makes_of_it(mode):
    one = int(np.flatnonzero(SCALES[mode] == 1)[0])
    width = max(64, len(CODES[mode]))  # MLX wants some columns
    codes = np.resize(np.arange(len(CODES[mode]), dtype=np.uint8), (1, width))
    scales = np.full((1, width // GROUPS[mode]), one, np.uint8)
    finite = np.isfinite(CODES[mode][codes])
    assert np.array_equal(dequantized(mode, codes, scales)[finite], CODES[mode][codes][finite])


@pytest.mark.parametrize("mode", CODES)
def test_the_gap_of_a_code_is_the_distance_to_the_next_magnitude(mode):
    sizes = np.abs(CODES[mode])
    for code in np.flatnonzero(np.isfinite(sizes)):
        larger = sizes[np.isfinite(sizes) & (sizes > sizes[code])]
        if larger.size:
            assert gaps(mode)[code] == larger.min() - sizes[code]
