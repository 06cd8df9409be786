"""What Core AI has no translation for is computed by other operations, as its own runtime does."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from weighbridge.cli import main

CODE = """
import torch
from torch import nn
from torch.nn import functional as F


class Norms(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        x = self.linear(x)
        variance, mean = torch.var_mean(x, -1, keepdim=True)
        spread = x.std((1, 2), keepdim=True) + x.var(unbiased=False) + x.var(1, correction=2, keepdim=True)
        normed = (x - mean) / torch.sqrt(variance + 1e-5) + spread
        curved = F.elu(x, 0.7) + F.selu(normed) + torch.erfc(x) + torch.hypot(x, normed)
        return curved + torch.nan_to_num(x / 0.9) % 2, x.argmin(-1).float()


def build():
    torch.manual_seed(0)
    return Norms().eval()


class Orders(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        x = self.linear(x)
        values, places = torch.sort(x, -1, descending=True)
        ties, first = torch.sort(x.round(), dim=1, stable=True)
        middle = x.median(1, keepdim=True)[0] + x.median()
        index = torch.tensor([[0, 1, 1], [5, 5, 5]])
        summed = x[0].scatter_add(1, index, x[0, :, 1:4]) + x[0].scatter_add(0, index, x[1, :, :3])
        moved = values + places + ties + first + middle + x.argsort(0) + summed
        squares = torch.diagonal(x, 1, 1, 2) + torch.diagonal(x, -2, 2, 0).sum()
        return moved, squares, x.unfold(1, 3, 2), x.cumprod(1), torch.cdist(x, moved) + torch.cdist(x, x + 1, p=1)


def build_orders():
    torch.manual_seed(0)
    return Orders().eval()
"""


@pytest.mark.parametrize("build", ["build", pytest.param("build_orders", marks=pytest.mark.heavy)])
def test_what_core_ai_has_no_translation_for_passes_its_check(tmp_path, monkeypatch, build):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    module = f"own_{build}"
    (tmp_path / f"{module}.py").write_text(CODE)
    np.savez("inputs.npz", x=np.random.default_rng(0).normal(size=(3, 8, 6)).astype(np.float32))
    words = (
        "export",
        "coreai",
        f"{module}:{build}",
        "a.aimodel",
        "--inputs",
        "inputs.npz",
        "--json",
    )
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["verdict"]["status"] == "PASS"


LONG = """
import torch
from torch import nn


class Long(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 3, 3, padding=1)

    def forward(self, x):
        x = self.conv(x)
        return {"sum": x.sum(-1), "mean": x.mean(-1), "var": x.var(-1), "all": x.mean()}


def build():
    torch.manual_seed(0)
    return Long().eval()
"""


@pytest.mark.heavy
def test_a_sum_along_one_long_axis_is_as_exact_as_that_of_torch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "long_sums.py").write_text(LONG)
    np.savez("inputs.npz", x=np.random.default_rng(0).normal(size=(2, 1, 16001)).astype(np.float32))
    words = ("export", "coreai", "long_sums:build", "a.aimodel", "--inputs", "inputs.npz", "--json")
    done = CliRunner().invoke(main, words)
    assert json.loads(done.stdout)["verdict"]["status"] == "PASS", done.output
