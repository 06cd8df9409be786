"""Arrays go to a framework and come back with every bit, and share no memory with it."""

from __future__ import annotations

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest
import torch

from weighbridge.converters.common.arrays import from_mlx, from_torch, to_mlx, to_torch

DTYPES = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, np.int64, np.uint8, np.bool_]
WAYS = {"torch": (to_torch, from_torch), "mlx": (to_mlx, from_mlx)}


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 5)])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda it: np.dtype(it).name)
@pytest.mark.parametrize("framework", WAYS)
def test_every_bit_comes_back(framework, dtype, shape):
    there, back = WAYS[framework]
    array = (np.random.default_rng(0).normal(size=shape) * 3).astype(dtype)
    found = back(there(array))
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()


@pytest.mark.parametrize("framework", WAYS)
def test_an_array_that_is_turned_arrives_as_it_is_read(framework):
    there, back = WAYS[framework]
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    assert np.array_equal(back(there(array)), array)


def test_dtypes_are_those_of_the_framework():
    array = np.ones(2, ml_dtypes.bfloat16)
    assert to_torch(array).dtype is torch.bfloat16
    assert to_mlx(array).dtype == mx.bfloat16
    assert to_mlx(np.ones(2)).dtype == mx.float64


def test_a_tensor_that_is_written_to_leaves_the_array_as_it_was():
    array = np.ones(2, np.float32)
    to_torch(array).zero_()
    assert array.tolist() == [1, 1]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu])
def test_float8_arrives_in_torch_as_it_is(dtype):
    array = np.arange(12, dtype=np.uint8).reshape(3, 4).T.view(str(dtype).rpartition(".")[2])
    tensor = to_torch(array)
    assert tensor.dtype is dtype
    assert tensor.view(torch.uint8).numpy().tobytes() == array.tobytes()
