"""Runs of a source that round in other ways show how far correct runs lie apart."""

import math

import mlx.core as mx
import numpy as np
import pytest
import torch
from mlx import nn as layers
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from weighbridge import capture
from weighbridge.converters.common.dtypes import unit_roundoff
from weighbridge.converters.models import Port, Signature
from weighbridge.parity.check.distances import Distance
from weighbridge.parity.probes.probes import Probe
from weighbridge.parity.reference.reference import module_outputs
from weighbridge.parity.reference.several import (
    in_one_run,
    in_several_runs,
    nudged,
    other_rounding,
    worst_of,
)

TOKENS = ("batch", "sequence", 16)
SIGNATURE = Signature((Port("x", "float32", TOKENS, ""),), (Port("y", "float32", TOKENS, ""),))


class Routed(nn.Module):
    """Two experts, of which a router that cannot decide takes one for each token."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(2, 2, bias=False)
        self.experts = nn.ModuleList([nn.Linear(2, 2) for _ in range(2)])
        self.router.weight.data = torch.tensor([[1.0, 0.0], [1.0, 0.0]])

    def forward(self, x):
        chosen = self.router(x).argmax(-1, keepdim=True)
        return torch.where(chosen == 0, self.experts[0](x), self.experts[1](x))


class Named(nn.Module):
    """A layer with a named input."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x):
        return self.layer(x)


def test_every_choice_that_rounding_may_make_is_seen():
    module, x = Routed(), torch.ones(1, 2)
    seen = set()
    with torch.no_grad(), other_rounding(module, "bfloat16") as moved:
        for seed in range(8):
            found = moved(seed, lambda: module(x))
            seen.add(bool((found - module.experts[0](x)).abs().max() < 0.02))
        assert torch.equal(module(x), module.experts[0](x)), "nothing stays moved"
    assert seen == {True, False}


def test_what_every_operation_of_a_module_from_mlx_makes_is_moved():
    """It has no layers that run: one run and eight others were the same, and a right package was rejected."""

    class Halves(layers.Module):
        def __call__(self, x):
            return x * (1 + mx.erf(x / math.sqrt(2))) / 2

    x = torch.linspace(-2, 2, 33)
    module = capture(Halves(), to="torch", inputs={"x": mx.array(x.numpy())})
    with torch.no_grad(), other_rounding(module, "float32") as moved:
        once, other = module(x=x), moved(0, lambda: module(x=x))
        assert torch.equal(module(x=x), once), "nothing stays moved"
    off = ((other - once).abs() / once.abs().clamp_min(1e-9)).numpy()
    assert unit_roundoff("float32") < off.max() < 100 * unit_roundoff("float32")


def test_what_every_operation_of_a_module_without_submodules_makes_is_moved():
    """It is one leaf that may compute anything: a right GELU of the converter's was nearly rejected."""

    class Cancels(nn.Module):
        def forward(self, x):
            y = x + 1000.0
            y[:, :1].mul_(2.0)  # through a view: y itself has to change
            return y.transpose(0, 1) - 1000.0

    x, module = torch.ones(4, 3), Cancels()
    with torch.no_grad(), other_rounding(module, "float32") as moved:
        once, other = module(x), moved(0, lambda: module(x))
        assert torch.equal(module(x), once), "nothing stays moved"
    off = (other - once).abs()
    assert 100 * unit_roundoff("float32") < off.max() < 5000 * unit_roundoff("float32")


def test_outputs_are_moved_by_one_rounding_at_most():
    module = nn.Linear(3, 4)
    x = torch.randn(50, 3)
    with torch.no_grad(), other_rounding(module, "float16") as moved:
        found = moved(0, lambda: module(x))
    quotient = (found / module(x) - 1).abs().detach().numpy()
    assert 0.5 * unit_roundoff("float16") < quotient.max() <= 1.001 * unit_roundoff("float16")


def test_no_mode_sees_how_outputs_are_moved():
    """A mode takes longer for each operation than moving takes in all."""
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    x, random = torch.ones(3), torch.Generator().manual_seed(0)
    with Watch():
        found = nudged(x, random, 0.1)
        _ = x + 1
    assert seen == [torch.ops.aten.add.Tensor]
    assert 0 < (found - x).abs().max() <= 0.1 * 1.001


@pytest.mark.parametrize(
    "layer",
    [nn.GRU(16, 12), nn.LSTM(16, 12), nn.MultiheadAttention(16, 2)],
    ids=lambda it: type(it).__name__,
)
def test_every_output_of_recurrences_and_attention_is_moved(layer):
    """They give several: one run and eight others were the same, and a right GRU was rejected."""
    module, x = nn.Sequential(layer), torch.randn(5, 2, 16)
    given = (x, x, x) if isinstance(layer, nn.MultiheadAttention) else (x,)
    with torch.no_grad(), other_rounding(module, "float32") as moved:
        once, other = (tree_leaves(it) for it in (layer(*given), moved(0, lambda: layer(*given))))
    for one, two in zip(once, other, strict=True):
        assert 0 < (one - two).norm() / one.norm() < 10 * unit_roundoff("float32")


def test_what_is_left_of_large_terms_is_moved_as_they_are():
    """Of its own size it moved by a rounding, and a right mean of such numbers was rejected."""
    module = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Identity())
    with torch.no_grad():
        module[0].weight.copy_(torch.tensor([[1000.0, -999.0]]))
        with other_rounding(module, "float32") as moved:
            found = [moved(seed, lambda: module(torch.ones(1, 2))).item() for seed in range(8)]
    off = np.abs(np.array(found) - 1).max()
    assert 100 * unit_roundoff("float32") < off < 3000 * unit_roundoff("float32")


def test_the_worst_of_several_runs_counts():
    rows = [{"y": Distance(float(whole), 1.0)} for whole in np.arange(3)]
    assert worst_of(rows)["y"].whole == 2.0


def own_errors(module, probe, runs):
    once = in_one_run(module, SIGNATURE, [probe], runs)
    return in_several_runs(module, "float32", SIGNATURE, [probe], runs[1], once)


def exact(tokens, rows=()):
    """Return the error of a source that is right by chance on so many TOKENS."""
    module, x = Named(), np.random.default_rng(0).normal(size=(1, tokens, 16)).astype("float32")
    probe = Probe("text", {"x": x}, rows)
    once = module_outputs(module, SIGNATURE, [probe], "float32")
    (found,) = own_errors(module, probe, (once, once))
    return found["y"].whole


def test_a_source_that_is_right_on_a_few_tokens_by_chance_is_run_again():
    assert 0 < exact(9) < 4 * unit_roundoff("float32")


@pytest.mark.parametrize(("tokens", "rows"), [(100, ()), (30, (3, 5, 7, 9, 11))])
def test_many_tokens_and_long_texts_are_run_once(tokens, rows):
    assert exact(tokens, rows) == 0.0


def test_a_source_that_errs_in_a_few_tokens_of_many_is_run_again():
    module, x = Named(), np.random.default_rng(0).normal(size=(1, 100, 16)).astype("float32")
    probe = Probe("text", {"x": x})
    (wanted,) = module_outputs(module, SIGNATURE, [probe], "float32")
    errors = []
    for part in (slice(None), slice(0, 3)):
        off = np.zeros_like(wanted["y"])
        off[:, part] = 1e-9
        runs = ([{"y": wanted["y"] + off.astype("float64")}], [wanted])
        errors += own_errors(module, probe, runs)
    assert errors[0]["y"].whole < 1e-8 < errors[1]["y"].whole
