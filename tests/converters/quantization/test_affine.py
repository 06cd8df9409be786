"""Our affine codes are MLX's, bit for bit, for every width, group, dtype and odd value."""

from __future__ import annotations

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest

from weighbridge.converters.common.arrays import to_mlx
from weighbridge.converters.quantization.affine import encode

from .conftest import AFFINE, DTYPES, parts_of

TINY = {"float32": 1e-45, "float16": 6e-8, "bfloat16": 9.2e-41}


def dtype_of(name):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def odd_groups(size, dtype, seed):
    """Return groups of ordinary numbers, then such as go wrong easily."""
    random = np.random.default_rng(seed)
    usual = random.standard_normal((200, size)) * np.exp(3 * random.standard_normal((200, 1)))
    one = np.ones((1, size))
    spike = np.zeros((1, size))
    spike[0, size // 2] = -1
    odd = [0 * one, -0.0 * one, 0.5 * one, -0.5 * one, spike, -spike, 1e-7 * usual[:1]]
    odd += [np.abs(usual[:4]), -np.abs(usual[:4]), 1 + 0.01 * usual[:2], np.sign(usual[:2])]
    odd += [one * TINY[dtype], spike * TINY[dtype], np.sign(usual[:1]) * 1e39]
    odd += [np.linspace(-1, 1, size)[None], np.linspace(0, 1, size)[None], random.random((4, size))]
    odd += [np.where(usual[:4] > 0, 0, usual[:4]), np.where(usual[:4] > 0, 7.5, -7.5)]
    limit = 6e4 if dtype == "float16" else 1.6e38  # twice that is infinite in float32
    return np.clip(np.concatenate([usual, *odd]), -limit, limit).astype(dtype_of(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scheme", AFFINE, ids=str)
def test_codes_scales_and_biases_are_those_of_mlx(scheme, dtype):
    for seed in range(3):
        values = odd_groups(scheme.group_size, dtype, seed)
        made = encode(values, scheme)
        with mx.stream(mx.cpu):
            expected = parts_of(to_mlx(values), scheme)
        assert made is not None
        for part, array in expected.items():
            assert made[part].tobytes() == array.tobytes(), part


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_is_left_to_mlx(odd, dtype):
    values = odd_groups(64, dtype, 0)
    values[3, 5] = odd
    assert encode(values, AFFINE[7]) is None
