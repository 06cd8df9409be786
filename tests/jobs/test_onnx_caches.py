"""ONNX decoders with caches of keys and values: read at once and in pieces, by their own caches."""

from __future__ import annotations

import json
import shutil

import onnx
import pytest
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.tests.support.atlas.tiny import make
from weighbridge.tests.support.onnx_caches import FAULTS, faulty, with_caches

pytest.importorskip("onnxruntime")


def check(source, file, status, code) -> dict[str, dict]:
    result = CliRunner().invoke(main, ["parity", "check", str(source), str(file), "--json"])
    assert result.exit_code == code, result.output
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


@pytest.mark.parametrize("tokens", [1])
def test_a_file_for_one_token_a_call_is_read_token_by_token(pair, tmp_path, tokens):
    proto = onnx.load(str(shutil.copy(pair[1], tmp_path / "m.onnx")))
    for value in (*proto.graph.input, *proto.graph.output):
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param == "tokens":
                axis.dim_value = tokens
    onnx.save(proto, str(tmp_path / "m.onnx"))
    stages = check(pair[0], tmp_path / "m.onnx", "PASS", 0)
    assert stages["decoding"]["status"] == "pass"
