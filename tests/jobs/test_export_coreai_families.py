"""Families as Core AI assets: all pass."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from weighbridge.cli import main
from weighbridge.converters.checkpoints.formats.coreai.asset import Asset
from weighbridge.tests.support.coreml.assets import with_weights
from weighbridge.tests.support.coreml.families import NAMES
from weighbridge.tests.support.coreml.families import source as family
from weighbridge.tests.support.coreml.models import MORE

pytest.importorskip("coreai", reason="Core AI has no package for this machine")


@pytest.mark.heavy
@pytest.mark.parametrize("name", [*NAMES, *MORE])
def test_every_family_passes_in_core_ai(name, tmp_path):
    words = ("export", "coreai", family(name, tmp_path), str(tmp_path / "m.aimodel"), "--json")
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["verdict"]["status"] == "PASS"


@pytest.mark.heavy
def test_what_a_batch_norm_adds_is_held_to_its_values(tmp_path):
    source, target = family("ResNet", tmp_path), tmp_path / "m.aimodel"
    result = CliRunner().invoke(main, ["export", "coreai", source, str(target), "--check", "none"])
    assert result.exit_code in (0, 4), result.output
    norm = "encoder.stages.1.layers.0.shortcut.normalization"
    state = load_file(f"{source}/model.safetensors")
    gain, bias, mean, variance = (
        state[f"{norm}.{it}"] for it in ("weight", "bias", "running_mean", "running_var")
    )
    added = (bias - mean * gain / torch.sqrt(variance + 1e-5)).numpy()
    asset = Asset(target)
    (name,) = (
        name
        for name, it in asset.headers.items()
        if it.dtype == "F32"
        and np.prod(it.shape) == added.size
        and np.allclose(asset.read(name).ravel(), added, atol=1e-5)
    )
    wrong = asset.read(name).copy()
    wrong.reshape(-1)[3] *= 1.001
    other = with_weights(target, tmp_path / "other.aimodel", {name: wrong})
    result = CliRunner().invoke(main, ["parity", "check", source, str(other), "--json"])
    assert json.loads(result.output)["status"] == "DIFFERS"
    (stage,) = (it for it in json.loads(result.output)["stages"] if it["name"] == "fingerprints")
    assert stage["status"] == "fail"
