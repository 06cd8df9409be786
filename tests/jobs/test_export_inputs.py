"""Modules of a user's own are exported by inputs of theirs, which say what varies."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from weighbridge.cli import main

CODE = """
import mlx.core as mx, torch
from mlx import nn as layers
from torch import nn


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.states, self.ids = nn.Linear(8, 4), nn.Embedding(10, 4)

    def forward(self, x, ids):
        return nn.functional.gelu(self.states(x) + self.ids(ids))


class Port(layers.Module):
    def __init__(self):
        super().__init__()
        self.states, self.ids, self.act = layers.Linear(8, 4), layers.Embedding(10, 4), layers.gelu

    def __call__(self, x, ids):
        return self.act(self.states(x) + self.ids(ids))


def in_torch():
    torch.manual_seed(0)
    return Both().eval()


def in_mlx():
    port = Port()
    port.load_weights([(name, mx.array(it.detach().numpy())) for name, it in in_torch().named_parameters()])
    return port
"""


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_export.py").write_text(CODE)
    random = np.random.default_rng(0)
    sizes = {"one": (6, 5), "other": (3, 7)}
    arrays = {
        f"{probe}/{name}": value
        for probe, size in sizes.items()
        for name, value in (
            ("x", random.normal(size=(*size, 8)).astype(np.float32)),
            ("ids", random.integers(0, 10, size)),
        )
    }
    np.savez("inputs.npz", **arrays)

    def run(*words):
        return CliRunner().invoke(main, [*map(str, words)])

    return run


@pytest.mark.parametrize(
    ("kind", "source", "target"),
    [
        ("onnx", "in_torch", "a.onnx"),
        pytest.param("onnx", "in_mlx", "a.onnx", marks=pytest.mark.heavy),
        ("coreml", "in_mlx", "a.mlpackage"),
        pytest.param("coreml", "in_torch", "a.mlpackage", marks=pytest.mark.heavy),
        pytest.param("coreai", "in_torch", "a.aimodel", marks=pytest.mark.heavy),
    ],
)
def test_a_module_without_a_signature_is_exported_by_inputs(kind, source, target, invoke):
    spec = f"own_export:{source}"
    done = invoke("export", kind, spec, target, "--inputs", "inputs.npz", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["verdict"]["status"].startswith("PASS")
    seen = invoke("inspect", target)
    assert seen.output.count("x_0") == seen.output.count("x_1") == 2, "sizes equal in both probes"


def test_a_graph_exported_by_inputs_takes_other_sizes(invoke, tmp_path):
    import onnxruntime

    chosen = ("--inputs", "inputs.npz", "--check", "none")
    assert invoke("export", "onnx", "own_export:in_torch", "a.onnx", *chosen).exit_code in (0, 4)
    session = onnxruntime.InferenceSession(tmp_path / "a.onnx")
    x, ids = np.ones((2, 9, 8), np.float32), np.ones((2, 9), np.int64)
    [found] = session.run(None, {"x": x, "ids": ids})
    assert found.shape == (2, 9, 4)


def test_a_rejected_package_keeps_its_ending_and_can_be_inspected(invoke, tmp_path, monkeypatch):
    monkeypatch.setattr("weighbridge.parity.check.check.decide", lambda *_: "DIFFERS")
    done = invoke("export", "onnx", "own_export:in_torch", "a.onnx", "--inputs", "inputs.npz")
    assert done.exit_code == 1
    assert "a.rejected.onnx" in done.output
    assert not (tmp_path / "a.onnx").exists()
    assert "an ONNX file" in invoke("inspect", "a.rejected.onnx").output


@pytest.mark.parametrize("kind", ["onnx", "coreml", "coreai"])
def test_inputs_that_the_module_does_not_take_are_named(kind, invoke, tmp_path):
    np.savez("other.npz", y=np.ones((2, 8), np.float32))
    target = {"onnx": "a.onnx", "coreml": "a.mlpackage", "coreai": "a.aimodel"}[kind]
    done = invoke("export", kind, "own_export:in_torch", target, "--inputs", "other.npz")
    assert (done.exit_code, done.output.count("\n")) == (3, 1), done.output
    assert "own_export:in_torch does not run on other.npz (y)" in done.output
    assert not (tmp_path / target).exists()
