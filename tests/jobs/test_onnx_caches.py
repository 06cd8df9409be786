"""ONNX decoders with caches of keys and values: read at once and in pieces, by their own caches."""

from __future__ import annotations

import json
import shutil

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import numpy_helper

from weighbridge.cli import main
from weighbridge.tests.support.atlas.tiny import make
from weighbridge.tests.support.onnx_caches import FAULTS, faulty, with_caches

pytest.importorskip("onnxruntime")


def check(source, file, status, code) -> dict[str, dict]:
    result = CliRunner().invoke(main, ["parity", "check", str(source), str(file), "--json"])
    assert result.exit_code == code, result.output[-400:]
    verdict = json.loads(result.stdout)
    assert verdict["status"] == status
    return {it["name"]: it for it in verdict["stages"]}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Return a source of two layers and a file with its caches."""
    folder = tmp_path_factory.mktemp("caches")
    make("llama", folder / "source", "saved", {"num_hidden_layers": 2}, gain=3.0)
    return folder / "source", with_caches(folder / "source", folder / "right.onnx")


def test_a_decoder_with_caches_passes_at_once_and_in_pieces(pair):
    stages = check(*pair, "PASS", 0)
    assert stages["structure"]["status"] == stages["decoding"]["status"] == "pass"
    assert "past_key_values.0.key to past_key_values.1.value" in stages["decoding"]["detail"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_cache_differs_by_its_name(pair, tmp_path, fault):
    stages = check(pair[0], faulty(pair[1], fault, tmp_path / "m.onnx"), "DIFFERS", 1)
    assert stages["structure"]["status"] == "pass"
    assert FAULTS[fault][1] in stages["decoding"]["detail"]


def test_a_cache_that_no_output_is_for_leaves_the_verdict_open(pair, tmp_path):
    proto = onnx.load(str(pair[1]))
    del proto.graph.output[-1]
    onnx.save(proto, str(tmp_path / "m.onnx"))
    stages = check(pair[0], tmp_path / "m.onnx", "UNVERIFIED", 4)
    assert "past_key_values.0.key is asked for and unknown" in stages["auxiliary"]["detail"]


def test_a_file_for_one_token_a_call_is_read_token_by_token(pair, tmp_path):
    proto = onnx.load(str(shutil.copy(pair[1], tmp_path / "m.onnx")))
    for value in (*proto.graph.input, *proto.graph.output):
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param == "tokens":
                axis.dim_value = 1
    onnx.save(proto, str(tmp_path / "m.onnx"))
    stages = check(pair[0], tmp_path / "m.onnx", "PASS", 0)
    assert stages["decoding"]["status"] == "pass"


@pytest.fixture(scope="module")
def halved(pair):
    """Return the file with its numbers in float16, as onnxruntime's own converter makes it."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    proto = onnx.load(str(pair[1]))
    del proto.graph.value_info[:]
    return convert_float_to_float16(proto, keep_io_types=True, disable_shape_infer=True)


def test_constants_that_a_converter_rounds_to_float16_are_put_back(pair, halved, tmp_path):
    onnx.save(halved, str(tmp_path / "m.onnx"))
    stages = check(pair[0], tmp_path / "m.onnx", "UNVERIFIED", 4)
    assert stages["structure"]["status"] == stages["decoding"]["status"] == "pass"
    # The converter hides by -65,504, to which scores are added: rows of padding alone become NaN in float16.
    assert "which are infinite in float16" in stages["precision"]["detail"]


@pytest.mark.parametrize(("least", "factor"), [(0.2, 1.02), (9e-7, 8)], ids=["scale", "epsilon"])
def test_constants_that_rounding_does_not_explain_differ(pair, halved, tmp_path, least, factor):
    proto, moved = onnx.load_from_string(halved.SerializeToString()), 0
    for node in proto.graph.node:
        for it in (a.t for a in node.attribute if node.op_type == "Constant" and a.HasField("t")):
            array = numpy_helper.to_array(it)
            if array.dtype == np.float16 and array.size == 1 and least < array < least * 1.5:
                it.CopyFrom(numpy_helper.from_array((array * factor).astype(np.float16)))
                moved += 1
    onnx.save(proto, str(tmp_path / "m.onnx"))
    assert moved
    assert check(pair[0], tmp_path / "m.onnx", "DIFFERS", 1)["structure"]["status"] == "fail"
