"""Of a model too large for all its inner sites, a part of a text names the fault."""

from __future__ import annotations

import copy

import mlx.core as mx
import numpy as np
import torch
from mlx import nn as mlx_nn
from safetensors.numpy import load_file, save_file
from torch import nn

from weighbridge.converters.models import Model, Port, Signature
from weighbridge.converters.planning.opening import open as open_model
from weighbridge.jobs.api import convert
from weighbridge.parity.blame import locating
from weighbridge.parity.check.check import check
from weighbridge.parity.check.live import compare_modules
from weighbridge.tests.support.atlas.tiny import make


def test_a_damaged_layer_is_named_from_few_tokens(tmp_path, monkeypatch):
    source, damaged = make("llama", tmp_path / "llama").folder, tmp_path / "damaged"
    convert(source, damaged, to="mlx", check="none")
    file = damaged / "model.safetensors"
    arrays = load_file(file)
    arrays["model.layers.1.mlp.down_proj.weight"][3] = 0
    save_file(arrays, file)
    monkeypatch.setattr(locating, "MEMORY", 1)
    monkeypatch.setattr(locating, "full_tokens", lambda _: 128)
    seen, plain = [], locating.sites_of

    def sites_of(golden, storage, chosen):
        seen.extend(chosen)
        return plain(golden, storage, chosen)

    monkeypatch.setattr(locating, "sites_of", sites_of)
    verdict = check(open_model(source), open_model(damaged), quick=True)
    assert verdict.status == "DIFFERS"
    assert [it.site for it in verdict.faults][:1] == ["model.layers.1.mlp.down_proj"]
    [probe] = seen
    assert probe.inputs["input_ids"].size == locating.LEAST


class SmallDifferences(nn.Module):
    """Between its modules it takes small differences of large sums, which the norm then enlarges."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.norm, self.down = nn.Linear(8, 512), nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.wide(x).unflatten(-1, (8, 64)) + 1000
        return self.down(self.norm(wide.sum(-1) - 64_000))


def test_a_module_after_badly_conditioned_arithmetic_is_not_named_beside_the_one_at_fault():
    right = SmallDifferences()
    wrong = copy.deepcopy(right)
    wrong.down.register_forward_hook(lambda _, __, output: 1.01 * output)
    ports = [Port(name, "float32", ("batch", 8), "hidden", (("batch", 64),)) for name in "xy"]
    declared = Signature((ports[0],), (ports[1],))
    sides = [
        Model(name, "torch", None, {}, factory=module, declared=declared)
        for name, module in (("right", right), ("wrong", wrong))
    ]
    verdict = check(*sides, runtime="mlx", quick=True)
    assert [(it.site, it.kind) for it in verdict.faults] == [("down", "scale")]


class Scaled(mlx_nn.Linear):
    """A linear layer with a fault."""

    def __call__(self, x: mx.array) -> mx.array:
        return 1.01 * super().__call__(x)


class NormInPlace(mlx_nn.Module):
    """``SmallDifferences`` in MLX, whose norm is computed without a call of the module that has its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.norm, self.down = mlx_nn.Linear(8, 512), mlx_nn.LayerNorm(8), Scaled(8, 8)

    def __call__(self, x: mx.array) -> mx.array:
        x = (self.wide(x).reshape(-1, 8, 64) + 1000).sum(-1) - 64_000
        return self.down(mx.fast.layer_norm(x, self.norm.weight, self.norm.bias, 1e-5))


def test_what_a_candidate_has_no_site_for_does_not_make_a_fault_of_the_next_one():
    right, port = SmallDifferences(), NormInPlace()
    port.load_weights([(name, mx.array(it.numpy())) for name, it in right.state_dict().items()])
    ports = [Port(name, "float32", ("batch", 8), "hidden", (("batch", 64),)) for name in "xy"]
    declared = Signature((ports[0],), (ports[1],))
    sides = [
        Model(name, framework, None, {}, factory=module, declared=declared)
        for name, framework, module in (("right", "torch", right), ("wrong", "mlx", port))
    ]
    verdict = check(*sides, quick=True)
    assert [(it.site, it.kind) for it in verdict.faults] == [("down", "scale")]


class OwnScale(nn.Module):
    """A residual layer with a weight of its own beside those of its submodules."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.scale = nn.Linear(8, 8), nn.Parameter(torch.full((8,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale * self.inner(x)


class Skipped(OwnScale):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_a_skipped_layer_that_has_weights_of_its_own_is_named_and_not_its_parts():
    right = nn.Sequential(nn.Linear(8, 8), OwnScale(), nn.Linear(8, 8))
    wrong = copy.deepcopy(right)
    wrong[1].__class__ = Skipped
    [found] = compare_modules(right, wrong, {"input": np.ones((2, 8), np.float32)}).faults
    assert (found.site, found.kind) == ("1", "skipped")
