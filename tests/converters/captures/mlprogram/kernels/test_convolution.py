"""Convolutions and pools, against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.converters.captures.mlprogram.kernels.convolution import KERNELS

RANDOM = np.random.default_rng(0)
SERIES = RANDOM.standard_normal((2, 4, 11)).astype(np.float32)
IMAGE = RANDOM.standard_normal((2, 4, 9, 7)).astype(np.float32)
VOLUME = RANDOM.standard_normal((1, 2, 5, 4, 6)).astype(np.float32)
CONV = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}
TRANSPOSED = {3: F.conv_transpose1d, 4: F.conv_transpose2d, 5: F.conv_transpose3d}


def weight(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


# x, weight, strides, padding of both sides, dilations, groups
CONVOLUTIONS = [
    (SERIES, weight(6, 4, 3), [2], [1], [1], 1),
    (SERIES, weight(6, 2, 3), [1], [4], [2], 2),
    (IMAGE, weight(8, 1, 3, 2), [2, 1], [1, 0], [1, 3], 4),
    (VOLUME, weight(3, 2, 2, 3, 2), [1, 2, 1], [0, 1, 2], [2, 1, 1], 1),
]


@pytest.mark.parametrize(("x", "w", "strides", "pad", "dilations", "groups"), CONVOLUTIONS)
def test_conv_equals_torch(x, w, strides, pad, dilations, groups, compute):  # noqa: PLR0917
    bias = weight(w.shape[0])
    operands = [torch.from_numpy(array) for array in (x, w, bias)]
    expected = CONV[x.ndim](*operands, strides, pad, dilations, groups)
    got = compute("conv", x=x, weight=w, bias=bias, strides=np.int32(strides), pad_type="custom",
                  pad=np.repeat(np.int32(pad), 2), dilations=np.int32(dilations),
                  groups=np.int32(groups))[0]  # fmt: skip
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_padding_may_differ_before_and_after(compute):
    w = weight(5, 4, 3)
    expected = F.conv1d(F.pad(torch.from_numpy(SERIES), (4, 0)), torch.from_numpy(w), dilation=2)
    got = compute("conv", x=SERIES, weight=w, pad_type="custom", pad=np.int32([4, 0]),
                  dilations=np.int32([2]))[0]  # fmt: skip
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@given(st.integers(3, 12), st.integers(1, 5), st.integers(1, 3), st.booleans())
def test_same_padding_gives_the_size_over_the_stride_rounded_up(size, window, stride, lower):
    kind = "same_lower" if lower else "same"
    x, w = torch.randn(1, 1, size), torch.randn(1, 1, window)
    assert KERNELS["conv"](x, w, None, (stride,), kind).shape[-1] == -(-size // stride)


def test_same_padding_of_stride_one_equals_torch(compute):
    w = weight(5, 4, 3)
    expected = F.conv1d(torch.from_numpy(SERIES), torch.from_numpy(w), padding="same")
    got = compute("conv", x=SERIES, weight=w, pad_type="same")[0]
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("x", "w", "strides", "pad", "output_pad", "groups"),
    [
        (SERIES, weight(4, 3, 3), [2], [1], [1], 1),
        (IMAGE, weight(4, 2, 3, 2), [2, 3], [1, 0], [1, 2], 2),
        (VOLUME, weight(2, 3, 2, 2, 3), [1, 2, 2], [0, 1, 1], [0, 1, 0], 1),
    ],
)
def test_conv_transpose_equals_torch(x, w, strides, pad, output_pad, groups, compute):  # noqa: PLR0917
    bias = weight(w.shape[1] * groups)
    operands = [torch.from_numpy(array) for array in (x, w, bias)]
    expected = TRANSPOSED[x.ndim](*operands, strides, pad, output_pad, groups)
    got = compute("conv_transpose", x=x, weight=w, bias=bias, strides=np.int32(strides),
                  pad_type="custom", pad=np.repeat(np.int32(pad), 2), groups=np.int32(groups),
                  output_shape=np.int32(expected.shape))[0]  # fmt: skip
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_conv_transpose_with_same_padding_multiplies_the_size(compute):
    got = compute("conv_transpose", x=SERIES, weight=weight(4, 3, 3), pad_type="same",
                  strides=np.int32([2]))[0]  # fmt: skip
    assert got.shape == (2, 3, 22)


POOLS = [
    ([3], [2], [1], False),
    ([2], [2], [0], True),
    ([3], [2], [1], True),
    ([4], [3], [2], True),
]


@pytest.mark.parametrize(("kernel", "strides", "pad", "ceil"), POOLS)
def test_max_pool_equals_torch(kernel, strides, pad, ceil, compute):
    expected = F.max_pool1d(torch.from_numpy(SERIES), kernel, strides, pad, ceil_mode=ceil)
    got = compute("max_pool", x=SERIES, kernel_sizes=np.int32(kernel), strides=np.int32(strides),
                  pad_type="custom", pad=np.repeat(np.int32(pad), 2), ceil_mode=np.bool_(ceil))[0]  # fmt: skip
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(("kernel", "strides", "pad", "ceil"), POOLS)
@pytest.mark.parametrize("exclude", [True, False])
def test_avg_pool_equals_torch(kernel, strides, pad, ceil, exclude, compute):
    expected = F.avg_pool1d(
        torch.from_numpy(SERIES),
        kernel,
        strides,
        pad,
        ceil_mode=ceil,
        count_include_pad=not exclude,
    )
    got = compute("avg_pool", x=SERIES, kernel_sizes=np.int32(kernel), strides=np.int32(strides),
                  pad_type="custom", pad=np.repeat(np.int32(pad), 2), ceil_mode=np.bool_(ceil),
                  exclude_padding_from_average=np.bool_(exclude))[0]  # fmt: skip
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_pools_of_two_and_three_dimensions_equal_torch(compute):
    two = compute("max_pool", x=IMAGE, kernel_sizes=np.int32([3, 2]), strides=np.int32([2, 1]))[0]
    np.testing.assert_array_equal(two, F.max_pool2d(torch.from_numpy(IMAGE), (3, 2), (2, 1)))
    three = compute("avg_pool", x=VOLUME, kernel_sizes=np.int32([2, 2, 3]))[0]
    expected = F.avg_pool3d(torch.from_numpy(VOLUME), (2, 2, 3), 1)
    np.testing.assert_allclose(three, expected, rtol=1e-5, atol=1e-6)


def test_l2_pool_equals_torch_lp_pool(compute):
    expected = F.lp_pool1d(torch.from_numpy(SERIES), 2, 3, 2)
    got = compute("l2_pool", x=SERIES, kernel_sizes=np.int32([3]), strides=np.int32([2]))[0]
    np.testing.assert_allclose(got, expected, rtol=1e-5)
