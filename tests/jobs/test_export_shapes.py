"""Outputs of modules without features, without rows, or without either: exported, and told apart where they differ."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from weighbridge.cli import main

CODE = """
import torch
from torch import nn


class Scored(nn.Module):
    def __init__(self, outputs, scale):
        super().__init__()
        self.outputs, self.rows, self.one = outputs, nn.Linear(16, 5), nn.Linear(16, 1)
        with torch.no_grad():
            self.one.weight.mul_(scale)

    def forward(self, x):
        rows, scores = self.rows(x), self.one(x)[:, 0]
        return {name: at(rows, scores) for name, at in self.outputs.items()}


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.GRU(16, 12, batch_first=True)

    def forward(self, x):
        rows, _ = self.layer(x.reshape(2, 6, 16))
        return {"rows": rows, "last": rows[:, -1]}


def recurrent():
    torch.manual_seed(0)
    return Recurrent().eval()


class Tempered(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 5)

    def forward(self, x, t):
        return {"rows": self.layer(x) * torch.exp(-t), "twice": 2 * t}


def tempered():
    torch.manual_seed(0)
    return Tempered().eval()


OUTPUTS = {
    "per_row": {"rows": lambda rows, scores: rows, "scores": lambda rows, scores: scores},
    "one_number": {"total": lambda rows, scores: scores.square().sum()},
    "without_any": {"scores": lambda rows, scores: scores, "none": lambda rows, scores: rows[:, :0],
                    "no_rows": lambda rows, scores: scores[:0]},
    "other_rows": {"apart": lambda rows, scores: torch.cdist(rows, torch.cat([rows, rows + 1])) * scores[:, None],
                   "image": lambda rows, scores: rows[:, :, None, None].expand(-1, -1, 2, 2) * scores[:, None, None, None]},
}


def made(name, scale):
    torch.manual_seed(0)
    return Scored(OUTPUTS[name], scale).eval()


def per_row(): return made("per_row", 1.0)
def one_number(): return made("one_number", 1.0)
def without_any(): return made("without_any", 1.0)
def other_rows(): return made("other_rows", 1.0)
def per_row_altered(): return made("per_row", 1.5)
def one_number_altered(): return made("one_number", 1.5)
def without_any_altered(): return made("without_any", 1.5)
def other_rows_altered(): return made("other_rows", 1.5)
"""
TARGETS = {"coreml": "a.mlpackage", "onnx": "a.onnx", "coreai": "a.aimodel"}


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "of_shapes.py").write_text(CODE)

    def run(rows, *words, **more):
        x = np.random.default_rng(0).normal(size=(rows, 16)).astype(np.float32)
        np.savez("inputs.npz", x=x, **more)
        words = [*words, "--inputs", "inputs.npz", "--json"]
        return CliRunner().invoke(main, words)

    return run


def verdict_of(result):
    found = json.loads(result.stdout)
    return found.get("verdict", found)


@pytest.mark.parametrize("rows", [3, 1])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("onnx", "per_row"),
        ("onnx", "one_number"),
        ("onnx", "without_any"),
        ("onnx", "other_rows"),
        ("coreml", "per_row"),
        ("coreai", "per_row"),
    ],
)
def test_outputs_of_any_shape_pass_and_altered_weights_differ(invoke, kind, name, rows):
    if kind == "coreai":
        pytest.importorskip("coreai_torch")
    words = ("export", kind, f"of_shapes:{name}", TARGETS[kind], "--precision", "fp32")
    assert verdict_of(invoke(rows, *words))["status"] in ("PASS", "PASS-REFERENCE")
    words = ("parity", "check", f"of_shapes:{name}_altered", TARGETS[kind])
    verdict = verdict_of(invoke(rows, *words))
    assert verdict["status"] == "DIFFERS"
    found = {stage["name"]: stage["status"] for stage in verdict["stages"]}
    assert found["structure"] == "fail"


def test_the_few_numbers_that_a_recurrence_ends_with_pass(invoke):
    words = ("export", "onnx", "of_shapes:recurrent", "a.onnx", "--precision", "fp16")
    verdict = verdict_of(invoke(12, *words))
    assert verdict["status"] == "PASS", verdict["stages"]


def test_an_input_that_is_one_number_passes(invoke):
    words = ("export", "onnx", "of_shapes:tempered", "a.onnx")
    assert verdict_of(invoke(3, *words, t=np.float32(0.3)))["status"] == "PASS"


@pytest.mark.parametrize("kind", ["coreml", "coreai"])
def test_an_input_that_is_one_number_is_refused_where_inputs_have_axes(invoke, kind):
    if kind == "coreai":
        pytest.importorskip("coreai_torch")
    result = invoke(3, "export", kind, "of_shapes:tempered", TARGETS[kind], t=np.float32(0.3))
    assert result.exit_code == 3
    assert "as t: give it the shape (1,)" in json.loads(result.stdout)["error"]["message"]
