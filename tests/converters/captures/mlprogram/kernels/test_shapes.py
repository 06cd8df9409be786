"""Kernels that move elements, against coremltools' value inference and torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.converters.captures.mlprogram.kernels.shapes import KERNELS

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((2, 3, 4)).astype(np.float32)
IMAGE = RANDOM.standard_normal((2, 4, 6, 4)).astype(np.float32)

# Cases that coremltools' value inference can compute.
INFERRED = [
    ("reshape", {"x": X, "shape": np.int32([4, 6])}),
    ("reshape", {"x": X, "shape": np.int32([0, -1])}),
    ("reshape", {"x": X, "shape": np.int32([1, 0, 0, -1, 0])}),
    ("transpose", {"x": X, "perm": np.int32([2, 0, 1])}),
    ("transpose", {"x": X, "perm": np.int32([0, -1, -2])}),
    ("expand_dims", {"x": X, "axes": np.int32([0, 2, -1])}),
    ("squeeze", {"x": X[:1, :, :1], "axes": np.int32([-1])}),
    ("squeeze", {"x": X[:1, :, :1]}),
    ("shape", {"x": X}),
    ("concat", {"values": (X, -X), "axis": np.int32(1)}),
    ("stack", {"values": (X, -X), "axis": np.int32(1)}),
    ("split", {"x": X, "num_splits": np.int32(2), "axis": np.int32(2)}),
    ("split", {"x": X, "split_sizes": np.int32([1, 2]), "axis": np.int32(1)}),
    ("tile", {"x": X, "reps": np.int32([2, 1, 3])}),
    ("fill", {"shape": np.int32([2, 3]), "value": np.float32(1.5)}),
    ("range_1d", {"start": np.int32(2), "end": np.int32(9), "step": np.int32(3)}),
    ("reverse", {"x": X, "axes": np.int32([0, -1])}),
    ("reverse", {"x": X}),
    ("flatten2d", {"x": X, "axis": np.int32(2)}),
    ("flatten2d", {"x": X, "axis": np.int32(-1)}),
    ("band_part", {"x": X, "lower": np.int32(1), "upper": np.int32(-1)}),
    ("band_part", {"x": X, "lower": np.int32(-1), "upper": np.int32(0)}),
    ("pad", {"x": X, "pad": np.int32([1, 2, 0, 3]), "constant_val": np.float32(7)}),
    ("pad", {"x": X, "pad": np.int32([1, 2]), "mode": "reflect"}),
    ("pad", {"x": X, "pad": np.int32([2, 1]), "mode": "replicate"}),
]
# Cases with an oracle in torch.
TORCH = [
    ("pixel_shuffle", {"upscale_factor": np.int32(2)}, lambda x: torch.pixel_shuffle(x, 2)),
    ("pixel_unshuffle", {"downscale_factor": np.int32(2)}, lambda x: torch.pixel_unshuffle(x, 2)),
    ("sliding_windows", {"axis": 2, "size": 3, "stride": 2},
     lambda x: x.unfold(2, 3, 2).movedim(-1, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("operation", "inputs"), INFERRED)
def test_kernels_equal_coremltools_value_inference(operation, inputs, agree):
    agree(operation, **inputs)


@pytest.mark.parametrize(("operation", "inputs", "oracle"), TORCH)
def test_kernels_without_value_inference_equal_torch(operation, inputs, oracle, compute):
    expected = oracle(torch.from_numpy(IMAGE)).numpy()
    np.testing.assert_array_equal(compute(operation, x=IMAGE, **inputs)[0], expected)


def test_a_zero_beyond_the_first_axis_is_one_as_ios17_says(compute):
    x = np.zeros((2, 3), np.float32)
    assert compute("reshape", x=x, shape=np.int32([1, 0, -1, 0]))[0].shape == (1, 1, 2, 3)


def test_concat_interleaves_as_documented(compute):
    """The example of coremltools' documentation, whose value inference forgets interleaving."""
    values = np.float32([[1, 2], [3, 4], [5, 6]]), np.float32([[7, 8], [9, 10], [11, 12]])
    got = compute("concat", values=values, axis=np.int32(0), interleave=np.True_)[0]
    assert got.tolist() == [[1, 2], [7, 8], [3, 4], [9, 10], [5, 6], [11, 12]]


def test_reshape_of_nothing_keeps_nothing(compute):
    x = np.zeros((0, 3), np.float32)
    assert compute("reshape", x=x, shape=np.int32([3, 0]))[0].shape == (3, 0)


def test_reshape_like_takes_slices_of_other_shapes(compute):
    references = (np.zeros((2, 3)), np.zeros((1, 5, 4)))
    bounds = {"begins": (0, 2), "ends": (1, 0), "end_masks": (np.False_, np.True_)}
    x = np.arange(8, dtype=np.float32)
    assert compute("reshape_like", x=x, ref_tensors=references, **bounds)[0].shape == (2, 4)


def test_reverse_sequence_flips_only_the_given_lengths(compute):
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    result = compute("reverse_sequence", x=x, lengths=np.int32([2, 3]), seq_axis=1, batch_axis=0)
    assert result[0].tolist() == [[1, 0, 2, 3], [6, 5, 4, 7]]


def test_fill_like_has_the_shape_of_its_reference(compute):
    result = compute("fill_like", ref_tensor=X, value=np.float32(3))[0]
    np.testing.assert_array_equal(result, np.full_like(X, 3))


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 2))
def test_depth_to_space_undoes_space_to_depth(block, height, width, channels):
    x = torch.randn(2, channels, block * height, block * width)
    deep = KERNELS["space_to_depth"](x, block)
    assert deep.shape == (2, channels * block**2, height, width)
    assert torch.equal(KERNELS["depth_to_space"](deep, block), x)


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
def test_batch_to_space_undoes_space_to_batch(a, b, size):
    x = torch.randn(2, 3, a * size, b * size)
    blocks = KERNELS["space_to_batch"](x, (a, b), (0, a, b, 0))
    assert blocks.shape == (2 * a * b, 3, size + 1, size + 1)
    assert torch.equal(KERNELS["batch_to_space"](blocks, (a, b), (0, a, b, 0)), x)


def test_space_to_depth_moves_the_position_in_a_block_slowest(compute):
    x = np.arange(8, dtype=np.float32).reshape(1, 2, 2, 2)
    deep = compute("space_to_depth", x=x, block_size=np.int32(2))[0]
    assert deep.reshape(-1).tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
