"""Slices, gathers and scatters, against coremltools' value inference and numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.converters.captures.mlprogram.kernels.indexing import COMBINE, KERNELS

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((3, 4, 5)).astype(np.float32)

INFERRED = [
    ("slice_by_index", {"x": X, "begin": np.int32([1, 0, 2]), "end": np.int32([3, -1, 5])}),
    ("slice_by_index", {"x": X, "begin": np.int32([2, 3, 4]), "end": np.int32([0, 0, 1]),
                        "stride": np.int32([-1, -2, -1])}),
    ("slice_by_index", {"x": X, "begin": np.int32([0, 1, 0]), "end": np.int32([0, 0, 0]),
                        "begin_mask": np.array([True, False, False]),
                        "end_mask": np.array([True, True, False]),
                        "squeeze_mask": np.array([False, False, True])}),
    ("slice_by_index", {"x": X, "begin": np.int32([-1, 0, 0]), "end": np.int32([0, 4, 5]),
                        "squeeze_mask": np.array([True, False, False])}),
    ("slice_by_size", {"x": X, "begin": np.int32([1, 0, 3]), "size": np.int32([2, -1, 1])}),
    ("gather", {"x": X, "indices": np.int32([[0, 2], [1, 1]]), "axis": np.int32(1)}),
    ("gather", {"x": X, "indices": np.int32(2), "axis": np.int32(0)}),
    ("gather", {"x": X, "indices": np.int32([3, 0]), "axis": np.int32(-1)}),
    ("gather", {"x": X, "indices": np.int32([[0, 1], [2, 0], [1, 1]]), "axis": np.int32(1),
                "batch_dims": np.int32(1)}),
    ("gather_along_axis", {"x": X, "indices": RANDOM.integers(0, 4, (3, 2, 5)).astype(np.int32),
                           "axis": np.int32(1)}),
    ("non_zero", {"x": np.float32([[0, 1], [2, 0]])}),
]  # fmt: skip


@pytest.mark.parametrize(("operation", "inputs"), INFERRED)
def test_kernels_equal_coremltools_value_inference(operation, inputs, agree):
    agree(operation, **inputs)


@given(st.data())
def test_slices_are_those_of_numpy(data):
    bound = st.integers(-7, 7)
    begin, end = (tuple(data.draw(bound) for _ in range(2)) for _ in range(2))
    stride = tuple(data.draw(st.sampled_from([-3, -2, -1, 1, 2, 3])) for _ in range(2))
    x = np.arange(30).reshape(5, 6)
    expected = x[tuple(slice(*bounds) for bounds in zip(begin, end, stride, strict=True))]
    ours = KERNELS["slice_by_index"](torch.from_numpy(x), begin, end, stride)
    np.testing.assert_array_equal(ours, expected)


def test_slice_update_writes_what_slice_by_index_reads(compute):
    place = {"begin": np.int32([0, 3, 1]), "end": np.int32([2, 0, 5]),
             "stride": np.int32([1, -1, 2])}  # fmt: skip
    update = RANDOM.standard_normal((2, 3, 2)).astype(np.float32)
    written = compute("slice_update", x=X, update=update, **place)[0]
    np.testing.assert_array_equal(compute("slice_by_index", x=written, **place)[0], update)
    expected = X.copy()
    expected[0:2, 3:0:-1, 1:5:2] = update
    np.testing.assert_array_equal(written, expected)


def test_negative_indices_count_from_the_end(compute):
    taken = compute("gather", x=X, indices=np.int32([-1, -3]), axis=np.int32(0))[0]
    np.testing.assert_array_equal(taken, X[[-1, -3]])


@pytest.mark.parametrize("batch_dims", [0, 1])
def test_gather_nd_takes_by_coordinates(batch_dims, compute):
    indices = np.int32([[[0, 2], [1, 1]], [[2, 0], [2, 2]], [[1, 3], [0, 0]]])
    got = compute("gather_nd", x=X, indices=indices, batch_dims=np.int32(batch_dims))[0]
    if batch_dims:
        expected = np.stack([x[i[:, 0], i[:, 1]] for x, i in zip(X, indices, strict=True)])
    else:
        expected = X[indices[..., 0], indices[..., 1]]
    np.testing.assert_array_equal(got, expected)


UFUNCS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
          "max": np.maximum, "min": np.minimum}  # fmt: skip


@pytest.mark.parametrize("mode", sorted(UFUNCS))
def test_scatter_applies_repeated_indices_one_after_another(mode, compute):
    indices, updates = np.int32([2, 0, 2]), RANDOM.random((3, 3, 5)).astype(np.float32) + 1
    expected = np.moveaxis(X, 1, 0).copy()
    UFUNCS[mode].at(expected, indices, np.moveaxis(updates, 1, 0))
    got = compute("scatter", data=X, indices=indices, updates=updates, axis=1, mode=mode)[0]
    np.testing.assert_allclose(got, np.moveaxis(expected, 0, 1), rtol=1e-6)


def test_scatter_update_overwrites(compute):
    got = compute("scatter", data=X, indices=np.int32([1]), updates=X[:1], mode="update")[0]
    np.testing.assert_array_equal(got, X[[0, 0, 2]])


def test_scatter_along_axis_undoes_gather_along_axis(compute):
    order = np.argsort(RANDOM.random(X.shape), axis=2).astype(np.int32)
    taken = compute("gather_along_axis", x=X, indices=order, axis=np.int32(2))[0]
    back = compute("scatter_along_axis", data=np.zeros_like(X), indices=order, updates=taken,
                   axis=np.int32(2), mode="update")[0]  # fmt: skip
    np.testing.assert_array_equal(back, X)


def test_scatter_nd_adds_at_coordinates(compute):
    indices = np.int32([[0, 1], [2, 3], [0, 1]])
    updates = RANDOM.random((3, 5)).astype(np.float32)
    expected = X.copy()
    np.add.at(expected, (indices[:, 0], indices[:, 1]), updates)
    got = compute("scatter_nd", data=X, indices=indices, updates=updates, mode="add")[0]
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_all_scatter_modes_are_known():
    assert set(COMBINE) == {*UFUNCS, "update"}


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_one_hot_marks_on_a_new_axis(axis, compute):
    indices = np.int32([[0, 2], [3, 9]])
    got = compute("one_hot", indices=indices, one_hot_vector_size=4, axis=np.int32(axis),
                  on_value=np.float32(2), off_value=np.float32(-1))[0]  # fmt: skip
    expected = np.where(indices[..., None] == np.arange(4), 2.0, -1.0)
    np.testing.assert_array_equal(got, np.moveaxis(expected, -1, axis))


@pytest.mark.parametrize("kernel", ["scatter", "scatter_along_axis", "scatter_nd"])
def test_negative_indices_are_counted_from_the_end_before_ios_17_and_refused_since(kernel):
    data, updates = torch.zeros(4), torch.ones(1)
    indices = torch.tensor([[-1]] if kernel == "scatter_nd" else [-1])
    write = KERNELS[kernel]
    assert write(data, indices, updates).tolist() == [0, 0, 0, 1]
    for validated in (True, False):
        with pytest.raises(ValueError, match="-1 is negative, which iOS 17"):
            write(data, indices, updates, validate_indices=validated)
