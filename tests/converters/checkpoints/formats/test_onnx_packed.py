"""Weights inside ``MatMulNBits`` nodes, as onnxruntime's own quantizer writes them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from weighbridge.converters.checkpoints.formats import onnx_packed
from weighbridge.converters.checkpoints.formats.onnx_model import OnnxFile
from weighbridge.errors import UnsupportedError

onnxruntime = pytest.importorskip("onnxruntime")
INPUTS, OUTPUTS = 80, 6  # no whole number of blocks of 32
WEIGHT = np.random.default_rng(0).standard_normal((INPUTS, OUTPUTS)).astype(np.float32)


def quantized(folder, bits, *, symmetric, weight=WEIGHT):
    """Return the file that onnxruntime's quantizer makes of one product."""
    from onnxruntime.quantization import matmul_nbits_quantizer as own

    ports = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["rows", size])
        for name, size in (("x", len(weight)), ("y", OUTPUTS))
    ]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "up.weight"], ["y"])],
        "product",
        ports[:1],
        ports[1:],
        [numpy_helper.from_array(weight, "up.weight")],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    job = own.MatMulNBitsQuantizer(model, bits=bits, block_size=32, is_symmetric=symmetric)
    job.process()
    path = folder / "quantized.onnx"
    job.model.save_model_to_file(str(path))
    return path


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_a_weight_is_what_onnxruntime_multiplies_by(bits, symmetric, tmp_path, monkeypatch):
    path = quantized(tmp_path, bits, symmetric=symmetric)
    file = OnnxFile(path)
    assert {name: it.shape for name, it in file.headers.items()} == {"up.weight": (OUTPUTS, INPUTS)}
    found = file.read("up.weight")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (ran,) = session.run(None, {"x": np.eye(INPUTS, dtype=np.float32)})
    assert np.array_equal(found.T, ran)
    assert np.abs(found.T - WEIGHT).max() < 8 / 2**bits
    monkeypatch.setattr(onnx_packed, "AT_ONCE", 2 * INPUTS)
    assert np.array_equal(file.read("up.weight"), found)


def with_order(path, zeros):
    """Give the node in PATH columns in another order, and the ZEROS called so; return what it multiplies by."""
    random, proto = np.random.default_rng(1), onnx.load(path)
    arrays = {
        "order": random.integers(0, 3, 96).astype(np.int32),
        "floats": (15 * random.random((OUTPUTS, 3))).astype(np.float32),
    }
    proto.graph.initializer.extend(numpy_helper.from_array(it, n) for n, it in arrays.items())
    proto.graph.node[0].input[3:] = [zeros, "order"]
    onnx.save(proto, path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": np.eye(96, dtype=np.float32)})[0].T


WIDE = np.random.default_rng(1).standard_normal((96, OUTPUTS), "f4")


@pytest.mark.parametrize("zeros", ["", "floats"])
def test_columns_in_another_order_are_those_that_onnxruntime_multiplies_by(zeros, tmp_path):
    """Of whole blocks: where a row has others, its kernel reads beyond the order."""
    path = quantized(tmp_path, 4, symmetric=False, weight=WIDE)
    ran = with_order(path, zeros)
    assert np.abs(OnnxFile(path).read("up.weight") - ran).max() < 1e-6


def test_zeros_that_onnxruntime_leaves_out_are_refused_by_name(tmp_path):
    path = quantized(tmp_path, 4, symmetric=False, weight=WIDE)
    with_order(path, "up.weight_zero_points")
    with pytest.raises(UnsupportedError, match=r"up\.weight_Q4: its columns are in another order"):
        OnnxFile(path).read("up.weight")


def more_rows(node):
    next(it for it in node.attribute if it.name == "N").i += 1


def no_blocks(node):
    next(it for it in node.attribute if it.name == "block_size").i = 0


def nothing_said(node):
    del node.attribute[:]


@pytest.mark.parametrize("damage", [more_rows, no_blocks, nothing_said])
def test_a_node_whose_constants_do_not_fit_is_no_weight(damage, tmp_path):
    path = quantized(tmp_path, 4, symmetric=False)
    proto = onnx.load(path)
    damage(proto.graph.node[0])
    onnx.save(proto, path)
    assert "up.weight" not in OnnxFile(path).headers
