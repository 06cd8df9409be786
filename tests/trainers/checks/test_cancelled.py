"""Parameters that batch statistics cancel: named where a run moves them by rounding, and proved to be harmless frozen."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

import weighbridge

ROWS = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
DATA = {
    split: {"input": rows, "target": np.sin(rows.sum(1, keepdims=True))}
    for split, rows in {"train": ROWS[:160], "validation": ROWS[160:]}.items()
}
SETTINGS = {"steps": 15, "batch_size": 32, "optimizer": {"learning_rate": 0.02}}


def make(bias=True, dropout=0.0):
    torch.manual_seed(0)
    parts = [nn.Linear(8, 16, bias=bias), nn.BatchNorm1d(16), nn.Dropout(dropout), nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(16, 1))


def train(folder, backend="torch", module=None, **settings):
    """Return what a run wrote of its losses and its validations."""
    config = SETTINGS | settings
    weighbridge.train(module or make(), "regression", DATA, config, target=folder, backend=backend)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if "loss" in row]
    return np.array(losses), np.array(
        [it["validation"]["loss"] for it in rows if "validation" in it]
    )


def apart(tmp_path, **settings):
    """Return how far losses and validations of the two backends are apart."""
    (losses, figures), (other, others) = (
        train(tmp_path / backend, backend, **settings) for backend in ("mlx", "torch")
    )
    return np.abs(losses - other).max(), np.abs(figures - others).max()


@pytest.mark.heavy
def test_backends_validate_alike_where_no_rounding_moves_a_parameter(tmp_path):
    losses, figures = apart(tmp_path, freeze=["0.bias"])
    assert losses < 1e-6
    assert figures < 1e-6


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_run_names_a_bias_that_batch_statistics_cancel(dropout, tmp_path, capsys):
    train(tmp_path / "run", module=make(dropout=dropout), steps=1)
    said = capsys.readouterr().err
    assert "0.bias: batch statistics take out what it adds" in said
    assert "adamw moves it" in said
    assert "--set freeze=[0.bias]" in said
    noted = json.loads((tmp_path / "run/preflight.json").read_text())
    [row] = [it for it in noted["parameters"] if "batch statistics" in it["note"]]
    assert row["name"] == "model.0.bias"


@pytest.mark.parametrize(
    ("bias", "settings"),
    [
        (False, {}),
        (True, {"mode": "eval"}),
        (True, {"freeze": ["0.bias"]}),
        (True, {"optimizer": {"name": "sgd"}}),
    ],
)
def test_a_run_in_which_rounding_moves_nothing_names_nothing(bias, settings, tmp_path, capsys):
    train(tmp_path / "run", module=make(bias), steps=1, **settings)
    assert "rounding" not in capsys.readouterr().err


def test_a_bias_of_keys_which_evaluation_does_not_see_either_is_not_named(tmp_path, capsys):
    class Attending(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(1, 1, batch_first=True)
            self.norm, self.head = nn.BatchNorm1d(8), nn.Linear(8, 1)

        def forward(self, rows):
            rows = rows[..., None]
            return self.head(self.norm(self.attention(rows, rows, rows)[0][..., 0] ** 2))

    train(tmp_path / "run", module=Attending(), steps=1)
    assert "batch statistics" not in capsys.readouterr().err
