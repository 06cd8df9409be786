"""Adapters on vision towers: to MLX and back, live with a picture, and merged as PEFT merges them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from peft import LoraConfig, get_peft_model
from safetensors.numpy import load_file

from weighbridge.cli import main
from weighbridge.parity.check import pictures
from weighbridge.tests.support.atlas import tiny

TOWER = r".*vision_tower.*(q_proj|fc1)"
UPDATES = 4  # two in each of two layers


def run(*words):
    result = CliRunner().invoke(main, [*map(str, words), "--json"])
    return result.exit_code, json.loads(result.stdout)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a folder with a tiny LLaVA, an adapter on its tower and what PEFT makes of both."""
    folder = tmp_path_factory.mktemp("tower")
    model = tiny.make("llava", folder / "base", gain=tiny.GAIN, library="mlx-vlm").model
    tuned = get_peft_model(model.float(), LoraConfig(r=2, lora_alpha=4, target_modules=TOWER))
    for name, weight in tuned.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.05)
    tuned.save_pretrained(folder / "peft")
    tuned.merge_and_unload().save_pretrained(folder / "merged")
    return folder


@pytest.fixture(scope="module")
def in_mlx(made):
    """Return the adapter in MLX's dialect and the verdict on it."""
    words = ("convert", "peft-to-mlx", made / "peft", made / "mlx", "--base", made / "base")
    _, answer = run(*words)
    return made / "mlx", answer["verdict"]


def test_an_adapter_on_a_tower_runs_live_with_a_picture(in_mlx):
    live = next(it for it in in_mlx[1]["stages"] if it["name"] == "live")
    assert (in_mlx[1]["status"], live["status"]) == ("PASS", "pass")
    assert live["figures"]["effect"] > 0.01


def test_an_adapter_on_a_tower_comes_back_as_it_was(made, in_mlx):
    words = ("convert", "mlx-to-peft", in_mlx[0], made / "back", "--base", made / "base")
    code, _ = run(*words, "--check", "none")
    found, wanted = (load_file(made / it / "adapter_model.safetensors") for it in ("back", "peft"))
    assert (code, len(wanted)) == (0, 2 * UPDATES)
    assert found.keys() == wanted.keys()
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("way", ["base", "MLX"])
def test_a_merge_into_a_tower_is_the_merge_of_peft(way, made, in_mlx, tmp_path):
    base, adapter, target = made / "base", made / "peft", tmp_path / "merged"
    if way == "MLX":
        run("convert", "torch-to-mlx", base, tmp_path / "mlx", "--check", "none")
        base, adapter = tmp_path / "mlx", in_mlx[0]
    words = [str(it) for it in ("merge", base, adapter, target, "--check", "none")]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0
    assert f"{UPDATES} of {UPDATES} adapter updates merged" in result.output
    if way == "MLX":
        run("convert", "mlx-to-torch", target, tmp_path / "home", "--check", "none")
        target = tmp_path / "home"
    found, wanted = (load_file(it / "model.safetensors") for it in (target, made / "merged"))
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert np.abs(found[name] - array).max() <= 1e-6 * np.abs(array).max()


def test_a_tower_that_is_given_no_picture_keeps_its_adapter_unverified(made, tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "PICTURES", {})
    words = ("convert", "peft-to-mlx", made / "peft", tmp_path / "mlx", "--base", made / "base")
    code, answer = run(*words)
    live = next(it for it in answer["verdict"]["stages"] if it["name"] == "live")
    assert (code, live["status"]) == (4, "unverified")
    assert f"{UPDATES} updates of towers were not run: how pictures" in live["detail"]
