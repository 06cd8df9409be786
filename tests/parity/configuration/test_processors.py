"""Files that say how images become numbers travel with a model, and a check compares them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.converters.models import Model
from weighbridge.parity.configuration.processors import processor_stages

VIT = Path(__file__).parents[3] / "fixtures" / "vit" / "model"
NAME = "preprocessor_config.json"
SAYS = {"image_processor_type": "ViTImageProcessor", "image_mean": [0.5, 0.5, 0.5], "size": 8}


def run(*words):
    result = CliRunner().invoke(main, [*map(str, words), "--json"])
    return result.exit_code, json.loads(result.stdout)


@pytest.fixture
def sees(tmp_path):
    """Return the folder of a tiny ViT with a processor's files."""
    shutil.copytree(VIT, tmp_path / "vit")
    for name in (NAME, "processor_config.json", "video_preprocessor_config.json"):
        (tmp_path / "vit" / name).write_text(json.dumps(SAYS))
    return tmp_path / "vit"


def compared(reference, candidate):
    sides = (Model(str(it), "torch", it, {}) for it in (reference, candidate))
    return [(it.status, it.detail) for it in processor_stages(*sides)]


def test_they_are_carried_byte_for_byte(sees, tmp_path):
    run("convert", "torch-to-mlx", sees, tmp_path / "mlx", "--check", "none")
    files = sorted(it.name for it in sees.glob("*processor_config.json"))
    assert len(files) == 3
    for name in files:
        assert (tmp_path / "mlx" / name).read_bytes() == (sees / name).read_bytes()
    assert compared(sees, tmp_path / "mlx")[0][0] == "pass"


def test_other_numbers_differ(sees, tmp_path):
    shutil.copytree(sees, tmp_path / "other")
    (tmp_path / "other" / NAME).write_text(json.dumps(SAYS | {"image_mean": [0.4, 0.5, 0.5]}))
    code, verdict = run("parity", "check", sees, tmp_path / "other", "--quick")
    assert (code, verdict["status"]) == (1, "DIFFERS")
    stage = next(it for it in verdict["stages"] if it["status"] == "fail")
    assert stage["name"] == "processor"
    assert f"{NAME}: image_mean is [0.4, 0.5, 0.5], the reference has" in stage["detail"]


def test_a_lost_one_is_unverified_and_named(sees, tmp_path):
    shutil.copytree(sees, tmp_path / "lost")
    (tmp_path / "lost" / NAME).unlink()
    missing = f"the candidate has no {NAME}, which the reference has"
    assert compared(sees, tmp_path / "lost") == [("unverified", missing)]


def test_what_only_names_a_class_is_no_difference(sees, tmp_path):
    shutil.copytree(sees, tmp_path / "named")
    (tmp_path / "named" / NAME).write_text(json.dumps(SAYS | {"processor_class": "Other"}))
    assert compared(sees, tmp_path / "named")[0][0] == "pass"


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"pad_size": None}, "pass"),
        ({"do_rescale": True}, "unverified"),  # which may be what the class does by default
        ({"size": {"height": 8, "width": 8}}, "unverified"),
        ({"image_processor_type": "ViTImageProcessorFast"}, "unverified"),
        ({"image_processor": {"resample": 2, "pad_size": None}}, "pass"),
        ({"image_processor": {"resample": 3}}, "fail"),
        ({"size": 9}, "fail"),
        ({"image_mean": [0.5, 0.5, 0.51]}, "fail"),
    ],
)
def test_only_what_cannot_mean_the_same_differs(sees, tmp_path, change, status):
    (sees / NAME).write_text(json.dumps(SAYS | {"image_processor": {"resample": 2}}))
    shutil.copytree(sees, tmp_path / "other")
    said = SAYS | {"image_processor": {"resample": 2}} | change
    (tmp_path / "other" / NAME).write_text(json.dumps(said))
    assert compared(sees, tmp_path / "other")[0][0] == status


def test_a_program_is_asked_for_none(sees):
    program = Model("m.mlpackage", "mlprogram", sees, {})
    assert processor_stages(Model(str(sees), "torch", sees, {}), program) == []


def test_a_model_without_any_is_asked_for_none(sees):
    assert compared(VIT, sees) == []


def test_a_damaged_one_is_one_line(sees, tmp_path):
    shutil.copytree(sees, tmp_path / "bad")
    (tmp_path / "bad" / NAME).write_text("{")
    words = ["parity", "check", str(sees), str(tmp_path / "bad"), "--quick"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 3
    assert result.output.count("Error:") == 1
    assert NAME in result.output
