"""Whether a setting that a class does not read matters is measured on the source, not looked up by name."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.parity.configuration import stage, unlisted
from weighbridge.parity.probes import thresholds
from weighbridge.tests.support.atlas.tiny import make


def converted(kind, folder, **own):
    """Return the verdict of converting a tiny model of a KIND, and its stages by name."""
    source = make(kind, folder / kind, own=own).folder
    arguments = ["convert", "torch-to-mlx", str(source), str(folder / "out"), "--json"]
    verdict = json.loads(CliRunner().invoke(main, arguments).stdout)["verdict"]
    return verdict["status"], {it["name"]: it for it in verdict["stages"]}


def test_a_setting_that_the_class_has_as_a_constant_is_judged_by_the_outputs(tmp_path):
    """mlx-lm's mamba does not read layer_norm_epsilon; its norms have the same one."""
    assert converted("mamba", tmp_path)[0] == "PASS"


def test_a_setting_whose_effect_is_below_rounding_is_named_and_caps_the_verdict(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(stage, "unread", lambda *_: ["rms_norm_eps"])
    status, stages = converted("llama", tmp_path, rms_norm_eps=1e-10)
    assert (status, stages["configuration"]["status"]) == ("UNVERIFIED", "unverified")
    assert "does not read rms_norm_eps, which is 1e-10" in stages["configuration"]["detail"]
    assert "less than rounding may" in stages["configuration"]["detail"]


@pytest.mark.parametrize("key", ["max_position_embeddings", "rms_norm_eps", "hidden_size"])
def test_a_setting_that_changes_nothing_or_is_seen_or_is_a_size_never_caps(
    key, tmp_path, monkeypatch
):
    monkeypatch.setattr(stage, "unread", lambda *_: [key])
    assert converted("llama", tmp_path, rms_norm_eps=1e-3)[0] == "PASS"


def test_a_length_that_the_table_does_not_list_is_found_by_what_reads_it(tmp_path, monkeypatch):
    for module in (thresholds, unlisted):
        monkeypatch.setattr(module, "WINDOWS", ())
    status, stages = converted("mistral", tmp_path, sliding_window=32)
    assert (status, stages["lengths"]["status"]) == ("DIFFERS", "fail")
    assert "sliding_window 32" in stages["lengths"]["detail"]


def test_a_length_that_does_nothing_is_no_length(tmp_path, monkeypatch):
    monkeypatch.setattr(unlisted, "NAMED", unlisted.re.compile(".*position.*|.*window.*"))
    monkeypatch.setattr(unlisted, "LENGTHS", ())
    assert converted("llama", tmp_path)[0] == "PASS"


def test_a_golden_knows_what_settings_do_without_its_source(tmp_path):
    source = make("llama", tmp_path / "llama").folder
    for arguments in (
        ["convert", "torch-to-mlx", source, tmp_path / "out", "--check", "none"],
        ["parity", "record", source, tmp_path / "golden"],
    ):
        assert CliRunner().invoke(main, [*map(str, arguments)]).exit_code == 0
    manifest = json.loads((tmp_path / "golden" / "golden.json").read_text())
    assert manifest["provenance"]["effects"]["hidden_act"][0] > 1e-3
    arguments = ["parity", "check", str(tmp_path / "golden"), str(tmp_path / "out"), "--json"]
    stages = json.loads(CliRunner().invoke(main, arguments).stdout)["stages"]
    [found] = [it for it in stages if it["name"] == "configuration"]
    assert found["status"] == "pass"
