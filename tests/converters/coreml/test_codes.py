"""Quantized MLX models exported with the codes that they have, by the command line."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.converters.captures.mlprogram import load_program
from weighbridge.converters.captures.mlprogram.contents import described
from weighbridge.converters.checkpoints import open_checkpoint
from weighbridge.converters.common.arrays import from_mlx, to_mlx
from weighbridge.tests.support.coreml.models import make

pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("ignore")]


def run(*words):
    """Run the command line; return its exit code and what it printed as JSON."""
    result = CliRunner().invoke(main, [*map(str, words), "--json"])
    return result.exit_code, json.loads(result.stdout)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Return the folder of a Llama in MLX, quantized by two methods."""
    folder = tmp_path_factory.mktemp("model")
    make("Llama", folder / "torch", hidden_size=64, intermediate_size=64, num_hidden_layers=1)
    run("convert", "torch-to-mlx", folder / "torch", folder / "dense", "--check", "none")
    for method, name in (("mlx", "whole"), ("search", "searched")):
        words = ("--method", method, "--bits", "4", "--group-size", "32", "--check", "none")
        assert run("quantize", folder / "dense", folder / name, *words)[0] == 0
    return folder


def test_codes_whose_zeros_are_codes_are_kept_and_mean_what_mlx_makes_of_them(model, tmp_path):
    import mlx.core as mx

    target = tmp_path / "m.mlpackage"
    code, told = run("export", "coreml", model / "whole", target, "--precision", "float32")
    assert (code, told["status"]) == (0, "PASS-REFERENCE")
    kept, files = told["facts"]["codes"]["codes"], open_checkpoint(model / "whole")
    assert {f"{it.removesuffix('weight')}scales" for it in kept} == {
        it for it in files.headers if it.endswith(".scales")
    }
    assert sum(described(target)["compressed"].values()) == len(kept)
    constants = load_program(target).constants()
    name = "model.layers.0.mlp.up_proj"
    parts = [to_mlx(files.read(f"{name}.{it}")) for it in ("weight", "scales", "biases")]
    expected = from_mlx(mx.dequantize(*parts, group_size=32, bits=4))
    found = constants[f"p_module_{name.replace('.', '_')}_weight_quantized"]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_codes_whose_zeros_lie_between_codes_stay_dense_and_say_why(model, tmp_path):
    target = tmp_path / "m.mlpackage"
    code, told = run("export", "coreml", model / "searched", target)
    assert (code, told["status"]) == (0, "PASS-REFERENCE")
    dense = told["facts"]["codes"]["dense"]
    assert all("of a step beside a code" in why for why in dense.values())
    assert len(dense) > 0


def test_codes_are_kept_where_activations_are_rounded_too(model, tmp_path):
    target = tmp_path / "m.mlpackage"
    options = ("--activations", "int8", "--accept", "unverified")
    code, told = run("export", "coreml", model / "whole", target, *options)
    assert code == 0, told
    stages = {it["name"]: it["status"] for it in told["verdict"]["stages"]}
    assert (stages["structure"], stages["precision"]) == ("pass", "pass"), told
    kept = told["facts"]["codes"]["codes"]
    assert kept
    assert sum(described(target)["compressed"].values()) == len(kept)
