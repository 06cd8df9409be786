"""Weights that ONNX graphs make of codes: the values of onnx's own reference evaluator, other exporters' too."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from weighbridge.converters.checkpoints.formats.onnx_model import OnnxFile
from weighbridge.converters.models.program_files import open_program
from weighbridge.errors import BadInputError

ROWS, COLUMNS = 6, 16
CODES = np.random.default_rng(0).integers(0, 16, (ROWS, COLUMNS))


def numbers(*shape):
    return np.random.default_rng(1).uniform(0.5, 2, shape).astype(np.float32)


def file_of(tmp_path, made, attributes):
    """Write a graph whose weight ``w`` is made of the constants MADE, and multiplied by an input."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", COLUMNS])
    outputs = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", ROWS]),
        helper.make_tensor_value_info("w", TensorProto.FLOAT, [ROWS, COLUMNS]),
    ]
    nodes = [
        helper.make_node("DequantizeLinear", [it.name for it in made], ["w"], **attributes),
        helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "t"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [x], outputs, made)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, tmp_path / "m.onnx")
    return model, OnnxFile(tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("kind", "scales", "attributes"),
    [
        (TensorProto.UINT4, (ROWS, COLUMNS // 4), {"axis": 1, "block_size": 4}),
        (TensorProto.INT8, (ROWS,), {"axis": 0}),
        (TensorProto.UINT8, (), {}),
    ],
    ids=["by block", "by row", "by tensor"],
)
@pytest.mark.parametrize("with_zeros", [False, True])
def test_a_weight_on_codes_is_read_at_its_value(tmp_path, kind, scales, attributes, with_zeros):
    made = [
        helper.make_tensor("codes", kind, CODES.shape, CODES.reshape(-1)),
        numpy_helper.from_array(numbers(*scales), "scales"),
    ]
    if with_zeros:
        zeros = np.full(scales, 7)
        made.append(helper.make_tensor("zeros", kind, scales, zeros.reshape(-1)))
    model, file = file_of(tmp_path, made, attributes)
    assert file.headers.keys() == {"w"}  # and neither codes nor scales
    inputs = {"x": np.ones((1, COLUMNS), np.float32)}
    wanted = ReferenceEvaluator(model).run(["w"], inputs)[0]
    assert str(file.headers["w"]) == f"F32[{ROWS}, {COLUMNS}]"
    assert np.array_equal(file.read("w"), wanted)


@pytest.mark.parametrize(
    ("shape", "attributes"),
    [((5,), {"axis": 0}), ((ROWS, 3), {"axis": 1, "block_size": 4}), ((2, 2), {"axis": 7})],
    ids=["too few rows", "too few blocks", "no such axis"],
)
def test_a_graph_whose_scales_do_not_fit_has_constants_and_no_weight(tmp_path, shape, attributes):
    made = [
        helper.make_tensor("codes", TensorProto.INT8, CODES.shape, CODES.reshape(-1)),
        numpy_helper.from_array(numbers(*shape), "scales"),
    ]
    _, file = file_of(tmp_path, made, attributes)
    assert file.headers.keys() == {"codes", "scales"}


def test_a_node_without_outputs_or_inputs_makes_no_weight(tmp_path):
    made = [
        helper.make_tensor("codes", TensorProto.INT8, CODES.shape, CODES.reshape(-1)),
        numpy_helper.from_array(numbers(), "scales"),
    ]
    model, _ = file_of(tmp_path, made, {})
    for names in ([["codes"], []], [[], ["other"]], [["", ""], ["third"]]):
        model.graph.node.append(helper.make_node("DequantizeLinear", *names))
    onnx.save(model, tmp_path / "odd.onnx")
    assert OnnxFile(tmp_path / "odd.onnx").headers.keys() == {"w"}


def test_an_input_of_no_known_dtype_is_refused(tmp_path):
    made = [numpy_helper.from_array(numbers(), "scales")]
    model, _ = file_of(tmp_path, [*made, *made], {})
    model.graph.input[0].type.tensor_type.elem_type = 1000
    onnx.save(model, tmp_path / "odd.onnx")
    with pytest.raises(BadInputError, match="x has no dtype that ONNX knows"):
        open_program(tmp_path / "odd.onnx")
