"""What all kernels have in common."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from weighbridge.converters.captures.mlprogram.evaluator import (
    INTEGERS,
    KERNELS,
    THEMES,
    held,
    released,
    settle,
)
from weighbridge.converters.captures.mlprogram.kernels.kernel import Ints, Tensors, kernel
from weighbridge.converters.captures.mlprogram.toolkit import coremltools, quiet

with quiet():
    from coremltools.converters.mil.mil.ops.registry import SSAOpRegistry


def sample(x: torch.Tensor, values: Tensors, axes: Ints | None = None, flag: bool = False):
    return x, axes, flag


def test_annotations_say_which_inputs_become_plain_values():
    made = kernel(sample)
    assert set(made.inputs) == {"x", "values", "axes", "flag"}
    given = {"x": torch.ones(1), "axes": torch.tensor([[1], [2]]), "flag": np.True_}
    _, axes, flag = made({**given, "values": []})
    assert (axes, flag) == ((1, 2), True)


def test_no_operation_has_kernels_in_two_themes():
    assert len(KERNELS) == sum(len(theme.KERNELS) for theme in THEMES)


def test_every_kernel_knows_all_inputs_of_its_operation():
    """In the newest version of the operation; and older names of inputs are a subset of ours."""
    for name, made in KERNELS.items():
        for operation in SSAOpRegistry.core_ops[name].values():
            assert set(operation.input_spec.input_types) <= set(made.inputs), name


@pytest.mark.parametrize("dtype", sorted(set(INTEGERS) - {"uint32", "int64"}))
def test_integers_wrap_around_as_numpy_casts_do(dtype):
    numbers = np.array([-70000, -129, -1, 0, 127, 128, 255, 256, 40000, 70000])
    settled = settle(torch.from_numpy(numbers), dtype, "declared")
    np.testing.assert_array_equal(released(settled, dtype), numbers.astype(dtype))


@pytest.mark.parametrize("dtype", ["float16", "float32", "int32", "int64", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_what_is_held_is_released_unchanged(dtype, shape):
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    again = released(held(array), dtype)
    assert again.dtype == array.dtype
    np.testing.assert_array_equal(again, array)


def test_strings_are_left_alone():
    assert held("same") == "same"


def test_the_version_of_coremltools_is_one_the_kernels_were_written_for():
    assert coremltools.__version__.startswith("9.")
