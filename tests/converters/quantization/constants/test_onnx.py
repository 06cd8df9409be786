"""ONNX's constants: the numbers that its own reference evaluator makes of them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.converters.quantization.conftest import AFFINE, DTYPES, parts_of, weights
from weighbridge.converters.quantization import Blocks, Scheme
from weighbridge.converters.quantization.constants.onnx import linear, matmul
from weighbridge.errors import UnsupportedError

TYPES = {2: TensorProto.UINT2, 4: TensorProto.UINT4, 8: TensorProto.UINT8}


def blocks_of(scheme, dtype="float16"):
    return Blocks(parts_of(weights((4, 256), dtype), scheme), scheme)


def evaluated(found):
    """Return what ONNX's evaluator makes of the constants FOUND, in float32."""
    rows, columns = found.x.shape
    groups = found.scales.shape[1]
    made = [
        helper.make_tensor("x", TYPES[found.bits], (rows, columns), found.raw, raw=True),
        numpy_helper.from_array(found.scales.astype(np.float32), "scales"),
        numpy_helper.from_array(found.biases.astype(np.float32)[..., None], "biases"),
        numpy_helper.from_array(np.array([rows, groups, -1]), "shape"),
    ]
    nodes = [
        helper.make_node(
            "DequantizeLinear", ["x", "scales"], ["d"], axis=1, block_size=found.block_size
        ),
        helper.make_node("Reshape", ["d", "shape"], ["grouped"]),
        helper.make_node("Add", ["grouped", "biases"], ["y"]),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["r", "g", "c"])
    graph = helper.make_graph(nodes, "weight", [], [output], made)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)])
    onnx.checker.check_model(model)
    return ReferenceEvaluator(model).run(None, {})[0].reshape(rows, columns)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scheme", AFFINE, ids=str)
def test_linear_constants_are_the_weight(scheme, dtype):
    blocks = blocks_of(scheme, dtype)
    found = linear(blocks)
    assert found.error == 0
    assert np.array_equal(found.blocks(scheme).values(), blocks.values())
    np.testing.assert_allclose(evaluated(found), blocks.values(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scheme", AFFINE, ids=str)
def test_products_are_with_the_weight_as_far_as_is_told(scheme, dtype):
    blocks = blocks_of(scheme, dtype)
    found = matmul(blocks)
    steps = np.repeat(np.abs(blocks.parts["scales"].astype(np.float64)), scheme.group_size, axis=1)
    gap = np.abs(found.values() - blocks.values()) / steps
    assert gap.max() == pytest.approx(found.error, rel=1e-6, abs=1e-12)
    assert found.error == 0 or (dtype == "float32" and found.error < 1e-6)


def test_tiny_floats_have_no_linear_codes():
    scheme = Scheme(4, 32, "mxfp4")
    with pytest.raises(UnsupportedError, match="table"):
        linear(Blocks(parts_of(weights((4, 64)), scheme), scheme))
