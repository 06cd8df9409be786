"""Ids at the edges of the vocabulary, positions far on and experts that nobody chose are run, or named."""

from __future__ import annotations

import json
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.converters.models import Port, Signature
from weighbridge.parity.configuration.reach import edge_ids, edge_texts
from weighbridge.parity.probes.probes import Probe
from weighbridge.tests.support.atlas.tiny import make


def converted(kind, folder, **own):
    """Return the verdict of converting a tiny model of a KIND, and its stages by name."""
    source = make(kind, folder / kind, own=own).folder
    arguments = ["convert", "torch-to-mlx", str(source), str(folder / "out"), "--json"]
    verdict = json.loads(CliRunner().invoke(main, arguments).stdout)["verdict"]
    return verdict, {it["name"]: it for it in verdict["stages"]}


def test_edges_of_the_vocabulary_and_the_last_positions_are_run(tmp_path):
    verdict, stages = converted("llama", tmp_path)
    assert (verdict["status"], stages["reach"]["status"]) == ("PASS", "pass")
    names = [row["probe"] for row in stages["reach"]["figures"]["rows"]]
    assert names == ["ids 0 to 2", "from position 240 on"]


def test_the_edges_are_run_on_the_modules_that_the_recording_built(tmp_path, monkeypatch):
    from weighbridge.parity.reference import reference

    built, plain = [], reference.open_module
    monkeypatch.setattr(
        reference, "open_module", lambda model, dtype: built.append(dtype) or plain(model, dtype)
    )
    _, stages = converted("llama", tmp_path)
    assert stages["reach"]["status"] == "pass"
    assert built.count("float32") == 1


def test_a_class_that_takes_the_first_id_for_another_differs(tmp_path, monkeypatch):
    from mlx_lm.models import llama

    plain = llama.LlamaModel.__call__

    def wrong(self, inputs, *args, **kwargs):
        return plain(self, mx.where(inputs == 0, 7, inputs), *args, **kwargs)

    monkeypatch.setattr(llama.LlamaModel, "__call__", wrong)
    verdict, stages = converted("llama", tmp_path)
    assert (verdict["status"], stages["structure"]["status"]) == ("DIFFERS", "pass")
    assert "ids 0 to 2" in stages["reach"]["detail"]


def spoil_far_rotations(monkeypatch):
    """Round rotations far on; they are told apart by their difference, so a mere shift would be right."""
    from mlx import nn

    plain = nn.RoPE.__call__

    def coarse(self, x, offset=0):
        rotated = plain(self, x, offset=offset)
        return rotated.astype(mx.bfloat16).astype(x.dtype) if offset > 100 else rotated

    monkeypatch.setattr(nn.RoPE, "__call__", coarse)


def test_a_class_that_is_wrong_at_far_positions_differs(tmp_path, monkeypatch):
    spoil_far_rotations(monkeypatch)
    verdict, stages = converted("llama", tmp_path)
    assert (verdict["status"], stages["structure"]["status"]) == ("DIFFERS", "pass")
    assert "from position 240 on" in stages["reach"]["detail"]


@pytest.mark.heavy
def test_what_only_the_class_gets_wrong_far_on_is_published_where_that_is_accepted(
    tmp_path, monkeypatch
):
    spoil_far_rotations(monkeypatch)
    source = make("llama", tmp_path / "llama").folder
    asked = ["convert", "torch-to-mlx", str(source), str(tmp_path / "out"), "--json"]
    result = CliRunner().invoke(main, [*asked, "--accept", "UPSTREAM"])
    verdict = json.loads(result.stdout)["verdict"]
    assert (result.exit_code, verdict["status"]) == (0, "DIFFERS")
    assert verdict["upstream"].startswith("mlx-lm")
    assert (tmp_path / "out" / "config.json").is_file()


def test_ids_are_put_where_tokens_are_and_into_every_text():
    shape, other = ("batch", "sequence"), ("batch", "decoded")
    ports = (
        Port("ids", "int64", shape, "token_ids"),
        Port("mask", "int64", shape, "attention_mask"),
        Port("decoded", "int64", other, "token_ids"),
    )
    arrays = {"ids": np.full((2, 3), 9), "mask": np.array([[1, 1, 1], [1, 0, 0]])}
    small = Probe("small", arrays | {"decoded": np.full((2, 2), 8)})
    first, second = edge_texts(small, Signature(ports, ()), [0, 1, 2, 3, 4])
    assert first.probe.inputs["ids"].tolist() == [[0, 1, 2], [3, 9, 9]]
    assert second.probe.inputs["ids"].tolist() == [[4, 9, 9], [9, 9, 9]]
    assert first.probe.inputs["decoded"].tolist() == [[0, 1], [2, 3]]
    assert second.probe.inputs["decoded"].tolist() == [[4, 8], [8, 8]]


def test_ids_that_stand_for_an_image_are_no_text(tmp_path):
    made = make("llama", tmp_path / "llama")
    config = {"image_token_id": 135, "pad_token_id": 3, "bos_token_id": [4]}
    assert edge_ids(SimpleNamespace(folder=made.folder, config=config), 136) == [0, 3]


@pytest.mark.parametrize(("chosen", "named"), [(1, True), (6, False)])
def test_experts_that_no_token_chose_are_named(chosen, named, tmp_path):
    own = {"num_experts_per_tok": chosen}
    verdict, _ = converted("qwen3_moe", tmp_path, **own)
    lines = [it for it in verdict["provenance"]["not_checked"] if "no token of a probe chose" in it]
    assert bool(lines) == named
