"""A weight that differs is told with what became of it, where rounding or another layout hides that."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

from weighbridge.parity.weights.fingerprints import explain
from weighbridge.parity.weights.sketches.sketch import ArrayWeights, sketches

DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)
RANDOM = np.random.default_rng(0)
MATRIX = RANDOM.normal(size=(24, 64)) * 0.2
KERNEL = RANDOM.normal(size=(6, 5, 3, 3)) * 0.2


def told(change, dtype, array=MATRIX, layout=lambda it: it):
    """Return what is said of ARRAY in DTYPE after CHANGE, in another LAYOUT."""
    source = {
        "w.weight": array.astype(dtype),
        "table.weight": RANDOM.normal(size=(300, 12)).astype(dtype),
    }
    changed = change(source["w.weight"].astype(np.float32)).astype(dtype)
    candidate = ArrayWeights({**source, "w.weight": np.ascontiguousarray(layout(changed))})
    weights = ArrayWeights(source)
    found = explain(sketches(weights), candidate, reference_arrays=weights.read)
    assert [it.name for it in found] == ["w.weight", "table.weight"]
    assert not found[0].ok
    assert found[0].source == "w.weight"
    return f"{found[0].kind}: {found[0].detail}"


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_weight_scaled_by_little(dtype):
    assert re.search(r"scaled.*1\.0(1|09)", told(lambda it: it * 1.01, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_moved_columns(dtype):
    words = told(lambda it: np.roll(it, 1, axis=1), dtype)
    assert "64 of 64 columns moved: 0 <- 63, 1 <- 0" in words


def in_steps(array, levels, group):
    table = array.reshape(-1, group)
    step = np.abs(table).max(axis=1, keepdims=True) / levels
    return ((table / step).round() * step).reshape(array.shape)


@pytest.mark.parametrize("dtype", DTYPES[:2])
@pytest.mark.parametrize(("bits", "group"), [(8, 64), (8, 32), (4, 64), (4, 32)])
def test_a_copy_in_fewer_bits(dtype, bits, group):
    words = told(lambda it: in_steps(it, 2 ** (bits - 1) - 1, group), dtype)
    assert f"as a copy in {bits} bits is" in words


def test_noise_is_no_copy_in_fewer_bits():
    words = told(lambda it: it + RANDOM.normal(size=it.shape) * 0.002, np.float16)
    assert "bits" not in words
    assert "scaled" not in words


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_scaled_kernel_with_other_axes(dtype):
    words = told(lambda it: it * 0.99, dtype, KERNEL, lambda it: it.transpose(0, 2, 3, 1))
    assert "with its axes in the order (0, 3, 1, 2)" in words
    assert "0.99" in words


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_number_of_a_vector_is_not_taken_for_a_row_of_a_table(dtype):
    vector = 1 + RANDOM.normal(size=12) * 0.1

    def change(array):
        array[3] *= 1.05
        return array

    assert "1 of 12 elements" in told(change, dtype, vector)
