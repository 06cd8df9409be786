"""Products in ``MatMulNBits``: what onnxruntime makes of them, and what comes back."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.converters.quantization.conftest import AFFINE, DTYPES, parts_of, weights
from weighbridge.converters.checkpoints.derived import Overlay
from weighbridge.converters.checkpoints.formats.onnx_model import OnnxFile
from weighbridge.converters.models.program_files import CODES
from weighbridge.converters.onnx_export.codes import keep_codes
from weighbridge.converters.onnx_export.products import products_with
from weighbridge.converters.onnx_export.reading import blocks_in
from weighbridge.converters.quantization import Blocks, Dequantized, Scheme

onnxruntime = pytest.importorskip("onnxruntime")
ROWS, COLUMNS = 6, 384
TURNED = [
    helper.make_node("Transpose", ["up.weight"], ["turned"], perm=[1, 0]),
    helper.make_node("MatMul", ["x", "turned"], ["y"]),
]
ADDED = [helper.make_node("Gemm", ["x", "up.weight", "up.bias"], ["y"], transB=1)]


class Nothing:
    """A checkpoint without tensors, to lay arrays over."""

    path, headers, metadata, files, ignored = "memory", {}, {}, (), ()


def source(scheme, dtype):
    """Return a weight quantized by SCHEME, its scales in DTYPE; some groups are zeros or of one sign."""
    dense = weights((ROWS, COLUMNS), dtype)
    dense[0, :128], dense[1] = 0, mx.abs(dense[1]) + 3
    parts = parts_of(dense, scheme)
    named = {"up.weight" if part == "weight" else f"up.{part}": it for part, it in parts.items()}
    return Dequantized(Overlay(Nothing(), named), {"quantization": scheme.record})


def graph_of(nodes, dense, axes=("batch", "rows")):
    """Return a model of NODES, which read the matrix DENSE and perhaps a bias."""
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [*axes, size])
        for name, size in (("x", COLUMNS), ("y", ROWS))
    ]
    arrays = {"up.weight": dense, "up.bias": np.arange(ROWS, dtype=np.float32)}
    constants = [numpy_helper.from_array(it, name) for name, it in arrays.items()]
    graph = helper.make_graph(nodes, "product", ports[:1], ports[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def written(nodes, tensors, path, axes=("batch", "rows")):
    """Write a model of NODES with the codes of TENSORS at PATH; return what its record says of them."""
    dense = tensors.read("up.weight")
    proto = graph_of(nodes, dense, axes)
    kept = keep_codes(proto, {"up.weight": dense}, tensors, products=True)
    onnx.save(proto, path)
    assert (kept.codes.keys(), kept.dense) == ({"up.weight"}, {})
    return {CODES: kept.codes, "weights": {"up.weight": {"key": "up.weight"}}}


def kinds(path):
    return [node.op_type for node in onnx.load(path).graph.node]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scheme", AFFINE[::2], ids=str)
def test_codes_scales_and_biases_come_back_bit_for_bit(scheme, dtype, tmp_path):
    tensors, path = source(scheme, dtype), tmp_path / "m.onnx"
    record, file = written(TURNED, tensors, path), OnnxFile(path)
    found, parts = blocks_in(file, record)["up.weight"].parts, tensors.parts("up.weight")
    assert found.keys() == parts.keys()
    for part, array in parts.items():
        assert (found[part].dtype, found[part].tobytes()) == (array.dtype, array.tobytes())
    assert np.array_equal(file.read("up.weight"), tensors.read("up.weight"))
    if dtype != "float32":  # whose zeros may not be exact
        assert kinds(path)[0] == "MatMulNBits"


@pytest.mark.parametrize("bits", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("nodes", [TURNED, ADDED], ids=["MatMul", "Gemm"])
def test_onnxruntime_multiplies_by_the_weight(nodes, bits, tmp_path):
    tensors, path = source(Scheme(bits, 64), "bfloat16"), tmp_path / "m.onnx"
    axes = ("batch", "rows") if nodes is TURNED else ("rows",)
    written(nodes, tensors, path, axes)
    assert "MatMulNBits" in kinds(path)
    given = np.random.default_rng(0).standard_normal((2, 3, COLUMNS)).astype(np.float32)
    given = given if nodes is TURNED else given[0]
    exact = Blocks(tensors.parts("up.weight"), tensors.schemes["up.weight"]).values()
    wanted = given @ exact.T + (np.arange(ROWS) if nodes is ADDED else 0)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": given})
    assert np.abs(found - wanted).max() < 3e-6 * np.abs(wanted).max()


def test_what_is_not_added_any_more_is_not_read_either(tmp_path):
    tensors, path = source(Scheme(4, 64), "bfloat16"), tmp_path / "m.onnx"
    record, proto = written(TURNED, tensors, path), onnx.load(path)
    add = proto.graph.node[-1]
    assert add.op_type == "Add"
    add.input[1] = add.input[0]
    onnx.save(proto, path)
    file, (shape,) = OnnxFile(path), {tensors.headers["up.weight"].shape}
    gap = np.abs(file.read("up.weight") - tensors.read("up.weight"))
    assert file.headers["up.weight"].shape == shape
    assert gap.max() > 1e-3
    assert not np.array_equal(
        blocks_in(file, record)["up.weight"].parts["biases"], tensors.parts("up.weight")["biases"]
    )


def test_a_stack_of_matrices_that_lie_in_one_weight_is_multiplied_by_each_apart():
    tensors = source(Scheme(4, 64), "bfloat16")
    stack = tensors.read("up.weight").reshape(2, ROWS // 2, COLUMNS)
    turned = helper.make_node("Transpose", ["up.weight"], ["turned"], perm=[0, 2, 1])
    proto = graph_of([turned, TURNED[1]], stack, (2, "rows"))
    proto.graph.output[0].type.tensor_type.shape.dim[2].dim_value = ROWS // 2
    given = np.random.default_rng(0).standard_normal((2, 3, COLUMNS)).astype(np.float32)
    keep_codes(proto, {"up.weight": stack}, tensors, products=True)
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (found,) = session.run(None, {"x": given})
    np.testing.assert_allclose(found, given @ stack.swapaxes(1, 2), rtol=1e-3, atol=1e-3)


READ = {
    "not turned": [
        helper.make_node("Transpose", ["up.weight"], ["turned"], perm=[0, 1]),
        TURNED[1],
    ],
    "looked up": [*TURNED, helper.make_node("Gather", ["up.weight", "ids"], ["rows"])],
    "given out": [
        helper.make_node("Transpose", ["up.weight"], ["y"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "y"], ["z"]),
    ],
    "on the left": [TURNED[0], helper.make_node("MatMul", ["turned", "x"], ["y"])],
    "not transposed": [helper.make_node("Gemm", ["x", "up.weight"], ["y"])],
    "halved": [helper.make_node("Gemm", ["x", "up.weight"], ["y"], transB=1, alpha=0.5)],
    "read by nothing": [],
}


@pytest.mark.parametrize("nodes", READ.values(), ids=READ.keys())
def test_a_weight_that_is_not_only_multiplied_by_is_left(nodes):
    graph = graph_of(nodes, np.zeros((ROWS, COLUMNS), np.float32)).graph
    assert products_with(graph, "up.weight") == []
