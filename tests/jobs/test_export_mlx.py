"""Models that only MLX computes, exported through the verb: traced into torch, compared with MLX, checked."""

from __future__ import annotations

import json

import mlx.core as mx
import numpy as np
import pytest
from click.testing import CliRunner
from mlx.utils import tree_flatten

import weighbridge
from weighbridge.cli import main
from weighbridge.converters.planning.opening import open as open_model
from weighbridge.converters.runtimes import mlx_in_torch
from weighbridge.errors import UnsupportedError
from weighbridge.tests.support.mlx_modules import LLAMA, language_model

ENCODER = "weighbridge.tests.support.mlx_modules:encoder_4bit"


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


@pytest.mark.heavy
def test_layers_of_equal_weights_that_a_converter_computes_with_share_one_constant(tmp_path):
    """mlx-lm's Mamba begins with one `A_log` in all layers, of which Core ML has `-exp(A_log)`."""
    source, target = "weighbridge.tests.support.mlx_modules:mamba", tmp_path / "mamba.mlpackage"
    document = json.loads(
        invoke("export", "coreml", source, target, "--upper", "batch=2", "--json")
    )
    assert document["verdict"]["status"] == "PASS-REFERENCE"


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return a directory of a type that mlx-lm has and transformers has not."""
    folder = tmp_path_factory.mktemp("alone")
    settings = {"model_type": "internlm2", **LLAMA, "bias": False, "rope_theta": 10000.0}
    module = language_model("internlm2", **settings)
    (folder / "config.json").write_text(json.dumps(settings))
    mx.save_safetensors(
        str(folder / "model.safetensors"),
        dict(tree_flatten(module.parameters())),
        {"format": "mlx"},
    )
    return folder


def test_a_directory_that_mlx_alone_runs_is_traced(alone):
    model = open_model(alone)
    assert model.only_in_mlx
    made = mlx_in_torch.in_torch(model, [{"input_ids": np.array([[1, 2, 3]])}])
    own = dict(tree_flatten(weighbridge.mlx_model(alone).parameters()))
    assert set(made.factory.state_dict()) == set(own)


@pytest.mark.heavy
def test_a_directory_that_mlx_alone_runs_becomes_an_onnx_file(alone, tmp_path):
    target = tmp_path / "alone.onnx"
    document = json.loads(invoke("export", "onnx", alone, target, "--json"))
    assert document["verdict"]["status"] == "PASS"


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
