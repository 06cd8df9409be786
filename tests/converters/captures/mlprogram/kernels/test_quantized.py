"""Quantized activations, against coremltools' own formulas."""

from __future__ import annotations

import numpy as np
import pytest

from weighbridge.converters.captures.mlprogram.toolkit import quiet

with quiet():
    from coremltools.optimize._utils import dequantize_by_scale_and_zp

X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32) * 50
PER_TENSOR = {"scale": np.float32(0.7)}
PER_ROW = {"scale": np.float32([0.3, 0.7, 1.1]), "axis": np.int32(0)}


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("scale", [PER_TENSOR, PER_ROW])
def test_quantize_equals_coremltools_value_inference(dtype, scale, agree):
    point = np.full(scale["scale"].shape, 3, dtype)
    zero = point if point.shape else np.dtype(dtype).type(3)
    agree("quantize", input=X, output_dtype=dtype, zero_point=zero, **scale)


@pytest.mark.parametrize("scale", [PER_TENSOR, PER_ROW])
def test_dequantize_equals_coremltools_formula(scale, compute):
    codes = np.random.default_rng(1).integers(-128, 128, (3, 4)).astype(np.int8)
    axis, zero_point = scale.get("axis"), np.int8(5)
    expected = dequantize_by_scale_and_zp(codes, scale["scale"], zero_point, axis)
    got = compute("dequantize", input=codes, zero_point=zero_point, **scale)[0]
    np.testing.assert_allclose(got, expected, rtol=1e-6)
