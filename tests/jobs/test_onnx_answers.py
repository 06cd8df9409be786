"""ONNX decoders that take what an encoder gives, and files of two branches: with the source's encoder, by their caches."""

from __future__ import annotations

import json
from typing import Any

import onnx
import pytest
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.tests.support.atlas.tiny import make
from weighbridge.tests.support.onnx_answers import FAULTS, answering, faulty, merged, source_of
from weighbridge.tests.support.onnx_caches import with_caches

pytest.importorskip("onnxruntime")


def check(source, file, status, code) -> dict[str, Any]:
    result = CliRunner().invoke(main, ["parity", "check", str(source), str(file), "--json"])
    assert result.exit_code == code, result.output[-400:]
    verdict = json.loads(result.stdout)
    assert verdict["status"] == status
    return {it["name"]: it for it in verdict["stages"]} | verdict["provenance"]


class Files:
    """A source, its decoder that begins a text, the one that goes on, and both in one file."""

    def __init__(self, kind: str, folder) -> None:
        self.source = source_of(kind, folder / "source")
        self.first = answering(self.source, folder / "first.onnx", past=False)
        self.later = answering(self.source, folder / "later.onnx", past=True, states=False)
        self.merged = merged(self.first, self.later, folder / "merged.onnx")


@pytest.fixture(scope="module")
def bart(tmp_path_factory):
    return Files("bart", tmp_path_factory.mktemp("bart"))


def test_a_decoder_without_caches_passes_and_its_encoder_is_named_as_not_checked(bart):
    found = check(bart.source, bart.first, "PASS", 0)
    assert found["structure"]["status"] == "pass"
    assert any("weights of the encoder" in it for it in found["not_checked"])


@pytest.mark.parametrize("file", ["later", "merged"])
def test_a_decoder_with_caches_of_the_text_passes_in_pieces(bart, file):
    found = check(bart.source, getattr(bart, file), "PASS", 0)
    assert found["structure"]["status"] == found["decoding"]["status"] == "pass"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_branch_that_reads_other_caches_differs_in_pieces(bart, tmp_path, fault):
    found = check(bart.source, faulty(bart.merged, fault, tmp_path / "m.onnx"), "DIFFERS", 1)
    assert found["structure"]["status"] == "pass"
    assert found["decoding"]["status"] == "fail"


def test_a_text_whose_mask_is_not_asked_for_differs(bart, tmp_path):
    proto = onnx.load(str(bart.first))
    for node in proto.graph.node:
        node.input[:] = ["input_ids" if it == "encoder_attention_mask" else it for it in node.input]
    proto.graph.input.remove(next(it for it in proto.graph.input if "mask" in it.name))
    onnx.save(proto, str(tmp_path / "m.onnx"))
    found = check(bart.source, tmp_path / "m.onnx", "DIFFERS", 1)
    assert "attention_mask" in found["auxiliary"]["detail"]


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["t5", "whisper"])
def test_merged_decoders_of_other_encoder_decoders_pass(kind, tmp_path):
    files = Files(kind, tmp_path)
    assert check(files.source, files.merged, "PASS", 0)["decoding"]["status"] == "pass"
    assert check(files.source, files.later, "PASS", 0)["decoding"]["status"] == "pass"


def test_a_merged_decoder_of_a_language_model_passes_in_pieces(tmp_path):
    make("llama", tmp_path / "source", "saved", {"num_hidden_layers": 2}, gain=3.0)
    first = with_caches(tmp_path / "source", tmp_path / "first.onnx", begun=False)
    later = with_caches(tmp_path / "source", tmp_path / "later.onnx")
    file = merged(first, later, tmp_path / "merged.onnx")
    found = check(tmp_path / "source", file, "PASS", 0)
    assert found["structure"]["status"] == found["decoding"]["status"] == "pass"
