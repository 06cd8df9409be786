"""Models that only MLX computes, exported through the verb: traced into torch, compared with MLX, checked."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.converters.planning.opening import open as open_model
from weighbridge.converters.runtimes import mlx_in_torch
from weighbridge.errors import UnsupportedError

ENCODER = "weighbridge.tests.support.mlx_modules:encoder"


def invoke(*arguments, code=0):
    result = CliRunner().invoke(main, [str(it) for it in arguments])
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.heavy
def test_a_factory_of_mlx_becomes_an_onnx_file(tmp_path):
    target = tmp_path / "encoder.onnx"
    document = json.loads(invoke("export", "onnx", ENCODER, target, "--json"))
    assert document["verdict"]["status"] == "PASS"
    record = json.loads(target.with_name("encoder.onnx.weighbridge.json").read_text())
    assert record["source"]["framework"] == "mlx"
    facts = json.loads(invoke("inspect", target, "--json"))
    assert "layer.weight" in facts["headers"]


@pytest.mark.heavy
def test_a_factory_of_mlx_becomes_a_core_ml_package(tmp_path):
    target = tmp_path / "encoder.mlpackage"
    document = json.loads(invoke("export", "coreml", ENCODER, target, "--json"))
    assert document["verdict"]["status"] == "PASS-REFERENCE"


def test_a_translation_that_gives_other_results_is_refused():
    model = open_model(ENCODER)
    inputs = [{"series": np.ones((2, 5, 6), np.float32)}]
    assert mlx_in_torch.computed_by_mlx(model)
    assert mlx_in_torch.in_torch(model, inputs).framework == "torch"
    wanted, other = {"last": np.ones(3)}, {"last": np.ones(3) + 2e-5}
    with pytest.raises(
        UnsupportedError, match=r"m: last differs from MLX's by 2\.0e-05 of its size"
    ):
        mlx_in_torch.require_same("m", wanted, other)
