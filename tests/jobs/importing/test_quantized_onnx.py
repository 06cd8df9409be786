"""ONNX files whose weights another program quantized: held against the dense model, and brought back."""

import json
from collections import Counter

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

import weighbridge
from weighbridge.cli import main
from weighbridge.converters.checkpoints.formats.onnx_model import OnnxFile
from weighbridge.converters.planning.transcoding import quantized_view
from weighbridge.converters.quantization import Scheme
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
    source, file = (
        make("Llama", folder / "source", hidden_size=32, intermediate_size=64),
        folder / "m.onnx",
    )
    plain("Llama", source, file, "logits", dynamo=True)
    return source, file


def quantized(file, target, *, how="QOperator", symmetric=False, bits=4, block=16):
    """Write what onnxruntime's quantizer makes of FILE, in blocks of so many columns, to TARGET."""
    made = MatMulNBitsQuantizer(
        onnx.load(file), bits, block, symmetric, quant_format=getattr(QuantFormat, how)
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


class Texts(CalibrationDataReader):
    """A few texts to calibrate on."""

    def __init__(self):
        drawn = np.random.default_rng(0)
        self.rows = iter([{"input_ids": drawn.integers(3, 61, (2, 32))} for _ in range(4)])

    def get_next(self):
        return next(self.rows, None)


def rounded(file, target, how):
    """Write what onnxruntime's quantizer makes of FILE, rounding what its products take HOW, to TARGET."""
    if how == "dynamic":
        quantize_dynamic(file, target, weight_type=QuantType.QInt8)
        return target
    kinds = {"op_types_to_quantize": ["MatMul", "Gather"], "weight_type": QuantType.QInt8}
    form = QuantFormat.QDQ if how == "static" else QuantFormat.QOperator
    quantize_static(file, target, Texts(), quant_format=form, per_channel=True, **kinds)
    return target


def stages_of(verdict):
    return {it["name"]: it for it in verdict["stages"]}


@pytest.mark.parametrize("how", ["dynamic", "static"])
def test_a_file_that_rounds_what_its_products_take_is_checked_without_that(dense, tmp_path, how):
    source, file = dense
    target = rounded(file, tmp_path / "q.onnx", how)
    np.savez(tmp_path / "texts.npz", **next(Texts().rows))
    words = ("--inputs", tmp_path / "texts.npz", "--json")
    code, verdict = run("parity", "check", source, target, *words)
    assert (code, verdict["status"]) == (0, "PASS"), verdict
    found = stages_of(verdict)
    assert "are the nearest to the source's" in found["compressed"]["detail"]
    assert 0 < found["activations"]["figures"]["moved"]["logits"] < 1


def test_steps_that_are_too_small_for_what_passes_are_unverified(dense, tmp_path):
    source, file = dense
    target = rounded(file, tmp_path / "q.onnx", "static")
    model = onnx.load(target)
    readers = Counter(name for node in model.graph.node for name in node.input)
    taken = [it.input[1] for it in model.graph.node if it.op_type == "QuantizeLinear"]
    taken = next(it for it in taken if readers[it] == 2)  # it and what undoes it, and no weight
    scale = next(it for it in model.graph.initializer if it.name == taken)
    smaller = onnx.numpy_helper.to_array(scale) / np.float32(1.5)
    scale.CopyFrom(onnx.numpy_helper.from_array(smaller, scale.name))
    onnx.save(model, target)
    np.savez(tmp_path / "texts.npz", **next(Texts().rows))
    words = ("--inputs", tmp_path / "texts.npz", "--json")
    code, verdict = run("parity", "check", source, target, *words)
    assert (code, verdict["status"]) == (4, "UNVERIFIED"), verdict
    assert "cuts off numbers" in stages_of(verdict)["activations"]["detail"]


@pytest.mark.parametrize("how", ["dynamic", "static"])
def test_a_weight_that_is_not_the_sources_differs_below_rounded_products(dense, tmp_path, how):
    source, file = dense
    target = rounded(file, tmp_path / "q.onnx", how)
    model = onnx.load(target)
    codes = [it for it in model.graph.initializer if it.data_type == onnx.TensorProto.INT8]
    codes = next(it for it in codes if len(it.dims) > 1)
    array = np.roll(onnx.numpy_helper.to_array(codes), 1, axis=0)
    codes.CopyFrom(onnx.numpy_helper.from_array(array, codes.name))
    onnx.save(model, target)
    code, verdict = run("parity", "check", source, target, "--json")
    assert (code, verdict["status"]) == (1, "DIFFERS"), verdict


def test_a_file_whose_products_are_of_codes_alone_is_refused_in_one_line(dense, tmp_path):
    source, file = dense
    target = rounded(file, tmp_path / "q.onnx", "operators")
    words = ("convert", "onnx-to-torch", target, tmp_path / "back", "--like", source)
    for asked in (("parity", "check", source, target), words):
        code, told = run(*asked)
        assert code == 3, told
        (line,) = (it for it in told.splitlines() if it.startswith("Error:"))
        assert "QuantizeLinear, " in line
    assert not (tmp_path / "back").exists()


# Texts that a check draws leave the ranges that were measured on others: undecided.
@pytest.mark.parametrize(("how", "ends"), [("dynamic", 0), ("static", 4)])
def test_weights_below_rounded_products_come_back(dense, tmp_path, how, ends):
    source, file = dense
    target = rounded(file, tmp_path / "q.onnx", how)
    words = ("convert", "onnx-to-torch", target, tmp_path / "back", "--like", source)
    code, told = run(*words, "--dequantize", "fp32")
    assert code == ends, told
    found, wanted = (load_file(it / "model.safetensors") for it in (tmp_path / "back", source))
    assert found.keys() == wanted.keys()
    for name, array in found.items():
        assert np.linalg.norm(array - wanted[name]) < 0.02 * np.linalg.norm(wanted[name]), name


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


@pytest.mark.parametrize("how", WAYS[1:], ids=str)
@pytest.mark.parametrize("to", ["mlx", "torch"])
def test_codes_whose_groups_mlx_has_come_back_as_codes(dense, tmp_path, to, how):
    source, file = dense
    target = quantized(file, tmp_path / "q.onnx", block=32, **{"symmetric": True, **how})
    words = ("convert", f"onnx-to-{to}", target, tmp_path / "codes")
    code, told = run(*words, "--like", source, "--json")
    assert code == 0, told
    assert "dense, " not in json.dumps(told)
    words = ("convert", "onnx-to-torch", target, tmp_path / "dense")
    code, told = run(*words, "--like", source, "--dequantize", "fp32")
    assert code == 0, told
    coded, plain_ones = (weighbridge.open(tmp_path / it) for it in ("codes", "dense"))
    seen, bits = quantized_view(coded).tensors, how.get("bits", 4)
    assert {*seen.schemes.values()} == {Scheme(bits, 32)}
    assert len(seen.schemes) > 6
    for name, header in plain_ones.checkpoint.headers.items():
        assert np.array_equal(seen.read(name), plain_ones.checkpoint.read(name)), (name, header)


def test_codes_whose_zeros_take_more_digits_stay_dense_and_say_so(dense, tmp_path):
    source, file = dense
    target = quantized(file, tmp_path / "q.onnx", block=32)
    words = ("convert", "onnx-to-mlx", target, tmp_path / "back", "--like", source)
    code, told = run(*words)
    assert code == 0, told
    assert "more digits than float32 keeps" in told
    assert "quantization" not in json.loads((tmp_path / "back" / "config.json").read_text())


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
