"""ONNX files whose weights another program quantized: held against the dense model, and brought back."""

import json

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantType,
    quant_pre_process,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from onnxruntime.quantization.quant_utils import QuantFormat
from safetensors.numpy import load_file

from weighbridge.cli import main
from weighbridge.converters.checkpoints.formats.onnx_model import OnnxFile
from weighbridge.tests.jobs.importing.test_plain_onnx import plain
from weighbridge.tests.support.coreml.models import make

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.heavy]


def run(*words):
    """Run the command line; return the exit code and what it said as JSON, or as text."""
    result = CliRunner().invoke(main, [*map(str, words)])
    try:
        return result.exit_code, json.loads(result.stdout)
    except ValueError:
        return result.exit_code, result.output


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    """Return a Llama, and the file of it that PyTorch's exporter writes."""
    folder = tmp_path_factory.mktemp("dense")
    source, file = make("Llama", folder / "source"), folder / "m.onnx"
    plain("Llama", source, file, "logits", dynamo=True)
    return source, file


def quantized(file, target, *, how="QOperator", symmetric=False, bits=4):
    """Write what onnxruntime's quantizer makes of FILE to TARGET."""
    made = MatMulNBitsQuantizer(
        onnx.load(file), bits, 16, symmetric, quant_format=getattr(QuantFormat, how)
    )
    made.process()
    made.model.save_model_to_file(str(target))
    return target


WAYS = [
    {},
    {"symmetric": True},
    {"bits": 8},
    {"how": "QDQ"},
]


@pytest.mark.parametrize("how", WAYS, ids=str)
def test_weights_that_onnxruntime_quantized_are_the_nearest_to_the_sources(dense, tmp_path, how):
    source, file = dense
    code, verdict = run(
        "parity", "check", source, quantized(file, tmp_path / "q.onnx", **how), "--json"
    )
    assert (code, verdict["status"]) == (0, "PASS"), verdict
    (stage,) = (it for it in verdict["stages"] if it["name"] == "compressed")
    assert "are the nearest to the source's" in stage["detail"]


@pytest.mark.parametrize("how", ["dynamic", "static"])
def test_a_file_that_rounds_what_its_layers_take_is_refused_in_one_line(dense, tmp_path, how):
    source, file = dense
    target = tmp_path / "q.onnx"
    if how == "dynamic":
        quantize_dynamic(file, target, weight_type=QuantType.QInt8)
    else:
        batches = iter([{"input_ids": np.ones((2, 8), np.int64)}])
        reader = type(
            "Reader", (CalibrationDataReader,), {"get_next": lambda _: next(batches, None)}
        )
        quantize_static(file, target, reader(), quant_format=QuantFormat.QDQ)
    words = ("convert", "onnx-to-torch", target, tmp_path / "back", "--like", source)
    for asked in (("parity", "check", source, target), words):
        code, told = run(*asked)
        assert code == 3, told
        (line,) = (it for it in told.splitlines() if it.startswith("Error:"))
        assert f"{'Dynamic' * (how == 'dynamic')}QuantizeLinear, " in line
    assert not (tmp_path / "back").exists()


def test_a_code_that_is_not_the_nearest_is_found(dense, tmp_path):
    source, file = dense
    target = quantized(file, tmp_path / "q.onnx")
    model = onnx.load(target)
    codes = next(it for it in model.graph.initializer if it.name.endswith("_Q4"))
    array = onnx.numpy_helper.to_array(codes).copy()
    array.flat[0] ^= 0x08  # one code, by eight steps
    codes.CopyFrom(onnx.numpy_helper.from_array(array, codes.name))
    onnx.save(model, target)
    code, verdict = run("parity", "check", source, target, "--json")
    assert (code, verdict["status"]) == (1, "DIFFERS"), verdict
    assert "1 of" in next(it["detail"] for it in verdict["stages"] if it["name"] == "compressed")


@pytest.mark.parametrize("how", [{}, {"how": "QDQ"}], ids=str)
def test_quantized_weights_without_names_come_back_at_their_values(dense, tmp_path, how):
    source, file = dense
    target = quantized(file, tmp_path / "q.onnx", **how)
    code, told = run("convert", "onnx-to-torch", target, tmp_path / "back", "--like", source)
    assert code == 0, told
    found, wanted = (load_file(it / "model.safetensors") for it in (tmp_path / "back", source))
    assert found.keys() == wanted.keys()
    held = OnnxFile(target)
    values = [held.read(name) for name, it in held.headers.items() if len(it.shape) > 1]
    for name, array in found.items():
        if array.ndim > 1:
            near = np.linalg.norm(array - wanted[name]) / np.linalg.norm(wanted[name])
            assert near < 0.2, name
            assert any(np.array_equal(array, it) for own in values for it in (own, own.T)), name


def test_an_export_of_ours_that_onnxruntime_folded_and_quantized_is_taken_as_anybodys(
    dense, tmp_path
):
    """Its record is still in it, and names weights that have gone."""
    source, _ = dense
    code, told = run("export", "onnx", source, tmp_path / "m.onnx", "--check", "none")
    assert code == 0, told
    quant_pre_process(tmp_path / "m.onnx", tmp_path / "folded.onnx", skip_symbolic_shape=True)
    target = quantized(tmp_path / "folded.onnx", tmp_path / "q.onnx")
    for file in (tmp_path / "folded.onnx", target):
        code, verdict = run("parity", "check", source, file, "--quick", "--json")
        assert (code, verdict["status"]) == (0, "PASS"), verdict
    code, told = run("convert", "onnx-to-torch", target, tmp_path / "back", "--like", source)
    assert code == 0, told
