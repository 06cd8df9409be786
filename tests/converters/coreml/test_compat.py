"""Lowering of torch graphs to what coremltools translates."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from weighbridge.converters.captures.mlprogram import load_program
from weighbridge.converters.captures.mlprogram.toolkit import coremltools, quiet
from weighbridge.converters.coreml.compat import (
    DECOMPOSITIONS,
    TRANSLATIONS,
    bound_constants,
    kind,
    lower,
    untranslated,
    within_half,
)
from weighbridge.converters.coreml.export import export_coreml
from weighbridge.converters.models.signature import Port, Signature
from weighbridge.errors import UnsupportedError

# torch.export warns of its own pytrees.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

SINCE_9_1 = {"alias", "and", "bitwise_or", "or", "unfold", "where.scalarother"}
SMALLEST = torch.finfo(torch.float32).min
X = torch.linspace(-2, 2, 12).reshape(3, 4)


class Ops(nn.Module):
    """What coremltools 9 lacks: ``lerp``; 9.0 also boolean operators and ``where`` with numbers."""

    def forward(self, x):
        both = (x > 0) & (x < 1) | (x < -1)
        y = torch.where(both, x, -7.5) + torch.where(both, 2.5, x) + torch.where(both, 1.0, 0.0)
        return torch.lerp(y, x, 0.25) * x.new_ones((3, 1))


class Masked(nn.Module):
    def forward(self, x):
        hidden = x.masked_fill(x > 1, SMALLEST) + torch.where(x < 0, SMALLEST, 0.0)
        return hidden, x.clamp(min=SMALLEST), x + torch.tensor(SMALLEST), x - math.inf


class Special(nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(x) + torch.special.bessel_j0(2 * x)


class Pooled(nn.Module):
    """A pooling whose stride is the size, a group norm and a scatter of one number."""

    def __init__(self):
        super().__init__()
        self.norm = nn.GroupNorm(2, 4)
        nn.init.normal_(self.norm.weight)

    def forward(self, x):
        wide = nn.functional.max_pool2d(self.norm(x), 2)
        flat = wide.flatten(1)
        return flat.scatter(1, torch.zeros_like(flat[:, :1], dtype=torch.int64), 1.5)


class Windows(nn.Module):
    """Windows of an image, by a permutation of six axes."""

    def forward(self, x):
        windows = x.view(x.shape[0], 2, 2, 2, 2, 4).permute(0, 1, 3, 2, 4, 5)
        return windows.reshape(-1, 4, 4) * 2


class Turned(nn.Module):
    """A picture that is turned by what it shows, and moved."""

    def forward(self, x):
        angle = x.mean((1, 2, 3))[:, None, None]
        turn = torch.eye(2, 3) + angle * torch.tensor([[0.0, 1.0, 0.2], [-1.0, 0.0, 0.1]])
        places = nn.functional.affine_grid(turn, list(x.shape), align_corners=False)
        return nn.functional.grid_sample(x, places + 0.01, align_corners=False)


def test_a_picture_is_turned_as_torch_does(tmp_path):
    port, path = Port("x", "float32", (2, 3, 6, 5), "series"), tmp_path / "turned.mlpackage"
    signature = Signature((port,), (replace(port, name="y"),))
    export_coreml(Turned(), signature, path, compute="float32")
    x = torch.randn(2, 3, 6, 5)
    found = load_program(path).run({"x": x.numpy()})["y"]
    np.testing.assert_allclose(found, Turned()(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("module", [Pooled(), Windows()])
def test_what_is_rewritten_for_sizes_that_vary_computes_the_same(module):
    x = torch.randn(2, 4, 4, 4)
    batch = {0: torch.export.Dim("batch", min=1, max=8)}
    graph = lower(torch.export.export(module, (x,), dynamic_shapes=(batch,)))
    torch.testing.assert_close(graph.module()(x), module(x))
    ranks = [node.meta["val"].dim() for node in graph.graph.nodes if "val" in node.meta
             and isinstance(node.meta["val"], torch.Tensor)]  # fmt: skip
    assert max(ranks) <= 5


def export(module):
    return torch.export.export(module, (X,))


def test_lowering_leaves_only_what_coremltools_translates():
    graph = export(Ops())
    assert untranslated(graph.run_decompositions({}))  # else this test would show nothing
    lowered = lower(graph)
    assert not untranslated(lowered)
    torch.testing.assert_close(lowered.module()(X), Ops()(X))


def test_what_is_lowered_is_computed_as_torch_does(tmp_path):
    port = Port("x", "float32", (3, 4), "series")
    path = tmp_path / "ops.mlpackage"
    export_coreml(Ops(), Signature((port,), (replace(port, name="y"),)), path, compute="float32")
    got = load_program(path).run({"x": X.numpy()})["y"]
    np.testing.assert_allclose(got, Ops()(X), rtol=1e-6)


# 9.1 leaves a folder to Python where it refuses a module.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_bits_of_integers_are_refused_not_taken_for_booleans(tmp_path):
    class Bits(nn.Module):
        def forward(self, x):
            return (x.int() | 1).float()

    port = Port("x", "float32", (3, 4), "series")
    signature = Signature((port,), (replace(port, name="y"),))
    with pytest.raises(UnsupportedError, match="bitwise_or"):
        export_coreml(Bits(), signature, tmp_path / "bits.mlpackage")


def test_what_coremltools_translates_is_left_whole():
    module = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU()).eval()
    kinds = {kind(n.target) for n in lower(export(module)).graph.nodes if n.op == "call_function"}
    assert {"linear", "layer_norm", "gelu"} <= kinds


def test_operations_without_a_decomposition_are_counted():
    with pytest.raises(UnsupportedError, match=r"2 operations .* special_bessel_j0 \(2\)"):
        lower(export(Special()))


def test_numbers_that_overflow_float16_become_finite_but_for_clamps_and_infinities():
    graph = lower(export(Masked()))
    bound_constants(graph)
    hidden, clamped, lifted, infinite = graph.module()(X)
    assert hidden.half().isfinite().all()
    assert hidden.min() < -2.9e4
    assert torch.equal(clamped, X)
    torch.testing.assert_close(lifted, X - 3e4)
    assert infinite.isinf().all()


@pytest.mark.parametrize(
    ("number", "expected"),
    [(SMALLEST, -3e4), (1e9, 3e4), (65504.0, 65504.0), (-math.inf, -math.inf), (0.5, 0.5), (7, 7)],
)
def test_only_finite_numbers_beyond_float16_are_replaced(number, expected):
    replaced = within_half(number)
    assert math.copysign(1, replaced) == math.copysign(1, number)
    assert replaced == expected


def test_no_row_of_the_table_is_already_translated():
    """But for those that 9.1 caught up with, which are of use in 9.0 alone: then they are to be removed."""
    with quiet():
        translated = {kind(t) for t in DECOMPOSITIONS if kind(t) in TRANSLATIONS}
    assert translated == (set() if coremltools.__version__.startswith("9.0") else SINCE_9_1)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_both_forms_of_gelu_are_exported_as_what_they_are(approximate, tmp_path):
    port = Port("input", "float32", (3, 4), "series")
    signature = Signature((port,), (replace(port, name="y"),))
    export_coreml(nn.GELU(approximate), signature, tmp_path / "g.mlpackage", compute="float32")
    found = load_program(tmp_path / "g.mlpackage").run({"input": X.numpy()})["y"]
    other = nn.GELU({"none": "tanh", "tanh": "none"}[approximate])
    assert np.abs(found - nn.GELU(approximate)(X).numpy()).max() < 1e-6
    assert np.abs(found - other(X).numpy()).max() > 1e-4, "the two forms can be told apart"
