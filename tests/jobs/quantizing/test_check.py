"""What was quantized is checked against its source; what was written wrong differs and is kept aside."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.converters.checkpoints import open_checkpoint, save_tensors
from weighbridge.converters.quantization import Scheme, dequantize, quantize
from weighbridge.jobs.quantizing import quantize as job
from weighbridge.jobs.quantizing.weights import nearest
from weighbridge.tests.converters.quantization.conftest import FLOATS, save
from weighbridge.tests.support.quantized_bases import LLAMA

from .test_quantize import torch_llama


def run(source, target, *more):
    """Quantize SOURCE and check the result; return exit code and stages by name."""
    words = ["quantize", source, target, "--json", *more]
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code in (0, 1, 4), result.output
    verdict = json.loads(result.stdout)["verdict"]
    return result.exit_code, {stage["name"]: stage for stage in verdict["stages"]}


def damaged(monkeypatch, change):
    """Let CHANGE alter the tensors or the config after they were written."""
    plain = job.write

    def write(plan, folder, options, *more):
        written = plain(plan, folder, options, *more)
        found = open_checkpoint(folder)
        tensors = {name: found.read(name) for name in found.headers}
        config = json.loads((folder / "config.json").read_text())
        change(tensors, config)
        save_tensors(folder / "model.safetensors", tensors, {"format": "mlx"})
        (folder / "config.json").write_text(json.dumps(config))
        return written

    monkeypatch.setattr(job, "write", write)


def a_code(tensors, _):
    tensors["lm_head.weight"][3, 2] ^= 1 << 4


def a_scale(tensors, _):
    tensors["model.layers.1.mlp.up_proj.scales"][5, 0] *= 1.5


def a_norm(tensors, _):
    tensors["model.norm.weight"][7] += 1


def a_tensor_too_many(tensors, _):
    tensors["model.norm.bias"] = tensors["model.norm.weight"]


FAULTS = {
    a_code: "lm_head.weight",
    a_scale: "model.layers.1.mlp.up_proj.weight",
    a_norm: "model.norm.weight is not the source's",
    a_tensor_too_many: "model.norm.bias is unexpected",
}


@pytest.mark.parametrize("method", ["mlx", "search"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_what_was_written_wrong_differs_and_is_named(fault, method, tmp_path, monkeypatch):
    save(tmp_path / "float", LLAMA)
    damaged(monkeypatch, fault)
    code, stages = run(tmp_path / "float", tmp_path / "made", "--method", method)
    assert (code, stages["fingerprints"]["status"]) == (1, "fail")
    assert FAULTS[fault] in stages["fingerprints"]["detail"]
    assert (tmp_path / "made.rejected").is_dir()
    assert not (tmp_path / "made").exists()


@pytest.mark.heavy
@pytest.mark.parametrize("method", ["mlx", "search"])
@pytest.mark.parametrize("framework", ["mlx", "torch"])
def test_the_class_computes_with_the_codes_as_pytorch_does(framework, method, tmp_path):
    if framework == "mlx":
        save(tmp_path / "float", LLAMA)
    else:
        torch_llama(tmp_path / "float")
    code, stages = run(tmp_path / "float", tmp_path / "made", "--method", method)
    passed = {name for name, stage in stages.items() if stage["status"] == "pass"}
    assert code == 0
    assert passed >= {"fingerprints", "dequantized", "loaded", "configuration", "structure"}


@pytest.mark.heavy
def test_a_config_that_computes_otherwise_differs(tmp_path, monkeypatch):
    save(tmp_path / "float", LLAMA)
    damaged(monkeypatch, lambda _, config: config.update(rope_theta=500.0))
    code, stages = run(tmp_path / "float", tmp_path / "made")
    assert code == 1
    assert "fail" in {stages["configuration"]["status"], stages["structure"]["status"]}


@pytest.mark.parametrize("scheme", [Scheme(4, 64), Scheme(2, 32), *FLOATS], ids=str)
def test_only_the_nearest_code_counts_as_nearest(scheme):
    values = np.random.default_rng(0).standard_normal((200, scheme.group_size), np.float32)
    parts = quantize(values, scheme, "F32")
    exact = dequantize(parts, scheme)
    right = nearest(values, exact, parts, scheme)
    assert right.mean() > 0.99 if scheme.affine else right.all()
    other = {**parts, "weight": parts["weight"] ^ np.uint32(1)}  # the first code of each word
    moved = dequantize(other, scheme) != exact
    wrong = ~nearest(values, dequantize(other, scheme), other, scheme)
    assert wrong[moved & right].mean() > 0.9
    assert not wrong[~moved & right].any()
