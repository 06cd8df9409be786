"""Products and attention, against coremltools' value inference and torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from weighbridge.converters.captures.mlprogram.kernels.linear import KERNELS

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((2, 3, 4)).astype(np.float32)
WEIGHT = RANDOM.standard_normal((5, 4)).astype(np.float32)
CUBE = RANDOM.standard_normal((4, 3, 5)).astype(np.float32)
BIAS = RANDOM.standard_normal(5).astype(np.float32)

INFERRED = [
    ("linear", {"x": X, "weight": WEIGHT, "bias": BIAS}),
    ("linear", {"x": X, "weight": WEIGHT}),
    ("matmul", {"x": X, "y": WEIGHT, "transpose_y": np.True_}),
    ("matmul", {"x": X, "y": X, "transpose_x": np.True_}),
    ("matmul", {"x": np.int32([[1, 2]]), "y": np.int32([[3], [4]])}),
    ("einsum", {"values": (X, CUBE), "equation": "chw,whr->chr"}),
    ("softmax", {"x": X, "axis": np.int32(1)}),
]


@pytest.mark.parametrize(("operation", "inputs"), INFERRED)
def test_kernels_equal_coremltools_value_inference(operation, inputs, agree):
    agree(operation, 2e-6, **inputs)


@pytest.mark.parametrize("mask", ["none", "bool", "float"])
def test_attention_equals_torch(mask, compute):
    query, key, value = RANDOM.standard_normal((3, 2, 3, 4, 8)).astype(np.float32)
    visible = np.tril(np.ones((4, 4), bool))
    masks = {"none": None, "bool": visible, "float": np.where(visible, 0, -3e4).astype(np.float32)}
    given = {} if masks[mask] is None else {"attn_mask": masks[mask]}
    tensors = [torch.from_numpy(array) for array in (query, key, value)]
    attend = torch.nn.functional.scaled_dot_product_attention
    bias = None if masks[mask] is None else torch.from_numpy(masks[mask])
    expected = attend(*tensors, attn_mask=bias).numpy()
    got = compute("scaled_dot_product_attention", query=query, key=key, value=value, **given)[0]
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_integers_are_widened_where_another_operand_is_of_floats(compute):
    whole = np.int32([[1, -2, 3, 4]])
    got = compute("linear", x=whole, weight=WEIGHT, bias=BIAS)[0]
    np.testing.assert_allclose(got, whole @ WEIGHT.T + BIAS, rtol=1e-6)


def test_every_kernel_of_the_table_is_tested():
    assert set(KERNELS) == {*(name for name, _ in INFERRED), "scaled_dot_product_attention"}
