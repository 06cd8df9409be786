"""Rounding on the grid that a weight has: the nearest of all its codes, in every mode and library."""

from __future__ import annotations

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.converters.quantization import Blocks, Scheme, quantize
from weighbridge.converters.quantization.codebooks import CODES
from weighbridge.converters.quantization.kept import grid_of, moved_codes, nearest

SCHEMES = [
    *(Scheme(bits, 64) for bits in (2, 3, 4, 5, 6, 8)),
    *(Scheme.of({"mode": mode}) for mode in ("mxfp4", "mxfp8", "nvfp4")),
]


def blocks(scheme, seed=0, dtype="F16"):
    values = np.random.default_rng(seed).normal(0, 0.1, (6, 128)).astype(np.float32)
    return Blocks(quantize(values, scheme, dtype), scheme)


def every_value(block):
    """Return for each number all the values that a code of its group has, shape (rows, columns, codes)."""
    count = 1 << block.scheme.bits
    others = {part: array for part, array in block.parts.items() if part != "weight"}
    found = [
        Blocks.of_codes(np.full(block.shape, code, np.uint8), others, block.scheme).values()
        for code in range(count)
    ]
    return np.stack(found, axis=-1)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_no_code_of_the_group_is_nearer(scheme):
    block = blocks(scheme)
    change = np.random.default_rng(1).normal(0, 0.05, block.shape)
    wanted = block.values() + change
    made = moved_codes(block, wanted)
    everything = every_value(block)
    distances = np.abs(everything - wanted[..., None])
    assert np.allclose(np.abs(made.values() - wanted), np.nanmin(distances, axis=-1), atol=1e-12)
    assert all(
        np.array_equal(made.parts[part], block.parts[part])
        for part in block.parts
        if part != "weight"
    )


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_a_change_of_nothing_leaves_the_bytes_alone(scheme):
    for dtype in ("F16", "BF16", "F32"):
        block = blocks(scheme, dtype=dtype)
        made = moved_codes(block, block.values())
        assert np.array_equal(made.parts["weight"], block.parts["weight"])
        assert np.array_equal(
            moved_codes(block, block.dense()).parts["weight"], made.parts["weight"]
        )


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_all_libraries_round_alike(scheme):
    block = blocks(scheme)
    wanted = block.values() + np.random.default_rng(2).normal(0, 0.05, block.shape)
    grid = grid_of(block)
    expected = grid.rounded(wanted, np)
    assert np.allclose(expected, moved_codes(block, wanted).values(), atol=1e-12)
    for library, to in ((mx, mx.array), (torch, torch.tensor)):
        narrow = grid._replace(
            worth=to(grid.worth.astype(np.float32)),
            scales=to(grid.scales.astype(np.float32)),
            values=to(grid.values.astype(np.float32)),
        )
        found = np.asarray(narrow.rounded(to(wanted.astype(np.float32)), library))
        assert np.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("mode", "dtype"),
    [("mxfp4", ml_dtypes.float4_e2m1fn), ("mxfp8", ml_dtypes.float8_e4m3fn)],
)
@given(numbers=st.lists(st.floats(-400, 400, width=32), min_size=1, max_size=20))
def test_floating_point_codes_are_rounded_as_their_dtype_rounds(mode, dtype, numbers):
    top = np.nanmax(CODES[mode])
    values = np.clip(np.array(numbers, np.float32), -top, top)
    found = nearest(values, Scheme.of({"mode": mode}), np)
    assert np.array_equal(found, values.astype(dtype).astype(np.float32))


def test_a_group_without_a_scale_stays_as_it_is():
    parts = {"scales": np.zeros((1, 1), np.float32), "biases": np.ones((1, 1), np.float32)}
    block = Blocks.of_codes(np.arange(32)[None] % 16, parts, Scheme(4, 32))
    made = moved_codes(block, block.values() + 5)
    assert np.array_equal(made.parts["weight"], block.parts["weight"])
