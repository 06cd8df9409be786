"""What no probe ran is named, and keeps a check from passing: towers for images and sound."""

from __future__ import annotations

import json
import shutil

import pytest
from click.testing import CliRunner

from tests.support.atlas.tiny import make
from weighbridge.cli import main


def run(*arguments):
    result = CliRunner().invoke(main, [*map(str, arguments), "--json"])
    return result.exit_code, json.loads(result.stdout)


def tower(verdict):
    return next((stage for stage in verdict["stages"] if stage["name"] == "towers"), None)


@pytest.fixture(scope="module")
def sees(tmp_path_factory):
    """Return the folder of a tiny Qwen2.5-VL, whose tower mlx-lm's class has not."""
    return make("qwen2_5_vl", tmp_path_factory.mktemp("towers") / "sees").folder


@pytest.mark.heavy
def test_a_tower_that_is_lost_is_unverified(sees, tmp_path):
    words = ("convert", "torch-to-mlx", sees, tmp_path / "mlx", "--library", "mlx-lm")
    code, answer = run(*words)
    assert (code, answer["verdict"]["status"]) == (4, "UNVERIFIED")
    detail = tower(answer["verdict"])["detail"]
    assert detail.startswith("vision_config: every probe is text, so ")
    assert "visual" in detail
    assert detail in answer["verdict"]["provenance"]["not_checked"]


@pytest.mark.heavy
def test_a_class_that_is_half_of_a_model_is_right_in_its_half_and_the_other_is_unverified(tmp_path):
    source = make("siglip", tmp_path / "source", library="mlx-vlm").folder
    words = ("convert", "torch-to-mlx", source, tmp_path / "mlx", "--library", "mlx-vlm")
    code, answer = run(*words)
    assert (code, answer["verdict"]["status"]) == (4, "UNVERIFIED")
    stages = {it["name"]: it["status"] for it in answer["verdict"]["stages"]}
    assert stages["structure"] == "pass"
    assert "vision_model.embeddings.*" in tower(answer["verdict"])["detail"]


@pytest.mark.heavy
def test_equal_towers_with_equal_settings_need_no_run(sees, tmp_path):
    shutil.copytree(sees, tmp_path / "same")
    code, verdict = run("parity", "check", sees, tmp_path / "same")
    assert (code, verdict["status"], tower(verdict)) == (0, "PASS", None)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["qwen2_5_vl", "idefics3"])
def test_another_activation_of_a_tower_does_not_pass(kind, tmp_path):
    source = make(kind, tmp_path / "source").folder
    shutil.copytree(source, tmp_path / "other")
    file = tmp_path / "other" / "config.json"
    config = json.loads(file.read_text())
    config["vision_config"]["hidden_act"] = "relu"
    file.write_text(json.dumps(config))
    code, verdict = run("parity", "check", source, tmp_path / "other")
    assert code != 0
    assert not verdict["status"].startswith("PASS")


@pytest.mark.heavy
@pytest.mark.parametrize(
    "change", [{"vision_feature_select_strategy": "full"}, {"image_token_index": 131}]
)
def test_towers_that_meet_the_text_otherwise_do_not_pass(change, tmp_path):
    source = make("llava", tmp_path / "source", library="mlx-vlm").folder
    shutil.copytree(source, tmp_path / "other")
    file = tmp_path / "other" / "config.json"
    config = json.loads(file.read_text())
    assert not config.items() >= change.items()
    file.write_text(json.dumps(config | change))
    code, verdict = run("parity", "check", source, tmp_path / "other", "--quick")
    assert code != 0
    assert not verdict["status"].startswith("PASS")
