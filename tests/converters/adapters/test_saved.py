"""Of the ``modules_to_save`` tensors of an adapter, those travel that differ from the base's."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from weighbridge.converters.adapters.differences import differing
from weighbridge.converters.checkpoints import open_checkpoint

W = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)


@pytest.fixture
def base(tmp_path):
    save_file({"w": W}, tmp_path / "model.safetensors")
    return open_checkpoint(tmp_path)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_a_copy_of_the_base_does_not_travel_in_whatever_dtype(dtype, base):
    assert differing({"w": W.astype(dtype)}, base) == {}


@pytest.mark.parametrize("array", [W + 1, W[:2], np.full_like(W, np.nan)])
def test_what_differs_does(array, base):
    assert differing({"w": array, "x": W}, base) == {"w": array, "x": W}


def test_a_tensor_trained_by_less_than_the_base_can_hold_is_no_copy(tmp_path):
    half = np.array([1.0, 2.0, 3.0], np.float16)
    save_file({"w": half}, tmp_path / "model.safetensors")
    own = open_checkpoint(tmp_path / "model.safetensors")
    trained = half.astype(np.float32) * np.float32(1 + 2.0**-14)
    assert np.array_equal(trained.astype(np.float16), half)
    assert differing({"w": trained}, own).keys() == {"w"}
