"""What Core AI has no translation for is computed by other operations, as its own runtime does."""

from __future__ import annotations

import json

import numpy as np
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
"""


def test_statistics_and_curves_pass_their_check_in_core_ai(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_norms.py").write_text(CODE)
    np.savez("inputs.npz", x=np.random.default_rng(0).normal(size=(3, 8, 6)).astype(np.float32))
    words = ("export", "coreai", "own_norms:build", "a.aimodel", "--inputs", "inputs.npz", "--json")
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["verdict"]["status"] == "PASS"
