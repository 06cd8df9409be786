"""Reductions and sorts, against coremltools' value inference and torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from weighbridge.converters.captures.mlprogram.kernels.reductions import KERNELS, REDUCTIONS

RANDOM = np.random.default_rng(0)
POSITIVE = (RANDOM.random((2, 3, 4)) + 0.5).astype(np.float32)
INTEGERS = RANDOM.integers(-9, 9, (3, 4)).astype(np.int32)
TIES = np.array([[1, 3, 3, 2], [5, 5, 0, 5]], np.float32)


@pytest.mark.parametrize("operation", sorted(REDUCTIONS))
@pytest.mark.parametrize("axes", [[1], [0, 2], [-1], [0, 1, 2]])
@pytest.mark.parametrize("keep", [True, False])
def test_reductions_equal_coremltools_value_inference(operation, axes, keep, agree):
    agree(operation, 2e-6, x=POSITIVE, axes=np.int32(axes), keep_dims=keep)


@pytest.mark.parametrize("operation", ["reduce_sum", "reduce_max", "reduce_min", "reduce_prod"])
def test_reductions_keep_integers(operation, agree):
    agree(operation, x=INTEGERS, axes=np.int32([1]))


def test_the_mean_of_integers_is_truncated_towards_zero(compute):
    assert compute("reduce_mean", x=np.int32([[-3, -4], [3, 4]]), axes=(1,))[0].tolist() == [-3, 3]


def test_without_axes_everything_is_reduced(compute):
    assert compute("reduce_sum", x=POSITIVE)[0].shape == ()


@pytest.mark.parametrize("operation", ["reduce_argmax", "reduce_argmin"])
@pytest.mark.parametrize("axis", [0, -1])
def test_positions_of_extremes_equal_coremltools_value_inference(operation, axis, agree):
    agree(operation, x=TIES, axis=np.int32(axis), keep_dims=True)


@pytest.mark.parametrize("reverse", [True, False])
def test_cumsum_equals_coremltools_value_inference(reverse, agree):
    agree("cumsum", 2e-6, x=POSITIVE, axis=np.int32(1), reverse=reverse)


@pytest.mark.parametrize("reverse", [True, False])
def test_an_exclusive_cumsum_leaves_the_element_itself_out(reverse, compute):
    """The value inference of coremltools fails on exclusive sums."""
    whole = compute("cumsum", x=POSITIVE, axis=1, reverse=reverse)[0]
    exclusive = compute("cumsum", x=POSITIVE, axis=1, reverse=reverse, exclusive=True)[0]
    np.testing.assert_allclose(exclusive + POSITIVE, whole, rtol=1e-6)
    assert not exclusive[:, -1 if reverse else 0].any()


@pytest.mark.parametrize("ascending", [True, False])
def test_argsort_equals_coremltools_value_inference(ascending, agree):
    agree("argsort", x=POSITIVE, axis=np.int32(-1), ascending=ascending)


@pytest.mark.parametrize("ascending", [True, False])
def test_topk_equals_torch(ascending, compute):
    largest = not bool(ascending)
    expected = torch.topk(torch.from_numpy(POSITIVE), 2, dim=2, largest=largest)
    values, indices = compute("topk", x=POSITIVE, k=np.int32(2), axis=2, ascending=ascending)
    np.testing.assert_array_equal(values, expected.values)
    np.testing.assert_array_equal(indices, expected.indices)


def test_topk_gives_indices_only_when_asked(compute):
    assert len(compute("topk", x=POSITIVE, k=1, return_indices=np.False_)) == 1


def test_every_kernel_of_the_table_is_tested():
    others = {"argsort", "cumsum", "reduce_argmax", "reduce_argmin", "topk"}
    assert set(KERNELS) == {*REDUCTIONS, *others}
