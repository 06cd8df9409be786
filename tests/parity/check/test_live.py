"""Two live modules, weighed inside somebody's test suite."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import torch
from mlx import nn as layers
from torch import nn

import weighbridge
from weighbridge.errors import BadInputError
from weighbridge.parity.check.live import compare_modules

INPUTS = {"x": np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)}


class TorchSide(nn.Module):
    """Linear, GELU, norm."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.norm = nn.Linear(6, 10), nn.LayerNorm(10)

    def forward(self, x):
        return self.norm(nn.functional.gelu(self.linear(x)))


class MlxSide(layers.Module):
    """The same in MLX, with another layer norm epsilon if asked to."""

    def __init__(self, source, eps=1e-5):
        super().__init__()
        self.linear, self.norm = layers.Linear(6, 10), layers.LayerNorm(10, eps=eps)
        pairs = [(name, mx.array(it.detach().numpy())) for name, it in source.named_parameters()]
        self.load_weights(pairs, strict=True)

    def __call__(self, x):
        return self.norm(layers.gelu(self.linear(x)))


@pytest.fixture
def source():
    return TorchSide()


def test_equal_modules_pass(source):
    weighbridge.assert_parity(source, MlxSide(source), INPUTS)


@pytest.mark.parametrize("kind", [torch.tensor, mx.array], ids=["torch", "mlx"])
def test_inputs_may_be_of_any_framework(source, kind):
    weighbridge.assert_parity(source, MlxSide(source), {"x": kind(INPUTS["x"])})


def test_a_difference_fails_with_the_report(source):
    with pytest.raises(AssertionError, match="structure, float32") as caught:
        weighbridge.assert_parity(source, MlxSide(source, eps=1e-3), INPUTS)
    assert str(caught.value).startswith("DIFFERS")


def test_the_users_modules_are_left_as_they_were(source):
    source.train()
    weighbridge.assert_parity(source, MlxSide(source), INPUTS)
    assert source.training
    assert source.linear.weight.dtype is torch.float32


def test_it_says_that_weights_were_not_fingerprinted(source):
    missed = compare_modules(source, MlxSide(source), INPUTS).provenance["not_checked"]
    assert any("no fingerprints" in line for line in missed)


def test_two_torch_modules_are_compared(source):
    weighbridge.assert_parity(source, TorchSide(), INPUTS)
    other = TorchSide()
    other.norm.eps = 1e-3
    with pytest.raises(AssertionError, match="norm"):
        weighbridge.assert_parity(source, other, INPUTS)


def test_the_mlx_module_may_come_first(source):
    weighbridge.assert_parity(MlxSide(source), source, INPUTS)


def test_two_mlx_modules_are_refused_in_one_line(source):
    with pytest.raises(BadInputError, match=r"has to be torch's"):
        weighbridge.assert_parity(MlxSide(source), MlxSide(source), INPUTS)


def test_the_message_names_the_weight_and_the_site(source):
    other = TorchSide()
    other.linear.weight.data[0] *= -1
    with pytest.raises(AssertionError) as caught:
        weighbridge.assert_parity(source, other, INPUTS)
    assert "linear.weight" in str(caught.value)
    assert "culprit" in str(caught.value)


def test_an_mlx_module_is_left_in_the_mode_it_was_in(source):
    module = MlxSide(source).train()
    weighbridge.assert_parity(source, module, INPUTS)
    assert module.training
    assert module.norm.training


def test_train_mode_is_reported(source):
    missed = compare_modules(source.train(), MlxSide(source).eval(), INPUTS).provenance[
        "not_checked"
    ]
    assert [line for line in missed if "train mode" in line and "the torch model" in line]
    quiet = compare_modules(source.eval(), MlxSide(source).eval(), INPUTS).provenance["not_checked"]
    assert not [line for line in quiet if "train mode" in line]
