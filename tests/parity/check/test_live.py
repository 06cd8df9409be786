"""Two live modules, checked inside somebody's test suite."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import torch
from mlx import nn as layers
from torch import nn

import weighbridge
from weighbridge.errors import BadInputError, WeighbridgeError
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
        self.acts, self.dtype = (
            [layers.gelu],
            mx.float32,
        )  # as ports hold them: neither can be copied
        pairs = [(name, mx.array(it.detach().numpy())) for name, it in source.named_parameters()]
        self.load_weights(pairs, strict=True)

    def __call__(self, x):
        return self.norm(self.acts[0](self.linear(x.astype(self.dtype))))


class OtherName(MlxSide):
    """The same, which calls its input otherwise."""

    def __call__(self, states):
        return super().__call__(states)


@pytest.fixture
def source():
    return TorchSide()


def test_equal_modules_pass(source):
    weighbridge.assert_parity(source, MlxSide(source), INPUTS)


@pytest.mark.parametrize("kind", [torch.tensor, mx.array], ids=["torch", "mlx"])
def test_inputs_may_be_of_any_framework(source, kind):
    weighbridge.assert_parity(source, MlxSide(source), {"x": kind(INPUTS["x"])})


@pytest.mark.parametrize(
    "given", [INPUTS["x"], [INPUTS["x"]], (INPUTS["x"],)], ids=["alone", "list", "tuple"]
)
@pytest.mark.parametrize("side", [MlxSide, OtherName])
def test_inputs_in_order_need_no_names(source, side, given):
    weighbridge.assert_parity(source, side(source), given)
    with pytest.raises(AssertionError, match=r"eps 0\.001"):
        weighbridge.assert_parity(source, side(source, eps=1e-3), given)


def test_a_module_that_was_called_in_order_is_left_as_it_was(source):
    module = OtherName(source)
    weighbridge.assert_parity(source, module, [INPUTS["x"]])
    assert type(module) is OtherName


class Raising(MlxSide):
    """One that cannot run."""

    def __call__(self, x):
        raise KeyError("my mistake")


@pytest.mark.parametrize(
    ("side", "inputs", "said"),
    [
        (OtherName, INPUTS, r"OtherName cannot be called .*'states'; inputs in a list go by order"),
        (MlxSide, {"y": INPUTS["x"]}, r"the torch model does not run on y: .*'y'"),
        (
            MlxSide,
            {"x": INPUTS["x"][:, :5]},
            r"the torch model does not run on x: float32 \(4, 5\)",
        ),
        (MlxSide, {"x": INPUTS["x"].astype(np.float64)}, "x: float64"),
        (MlxSide, {"x": INPUTS["x"][:0]}, "nothing to compare: x is empty"),
        (MlxSide, {"x": "text"}, "nothing to compare: x is no array of numbers"),
        (MlxSide, {}, "nothing to compare: no inputs are given"),
        (MlxSide, [INPUTS["x"]] * 2, r"2 inputs, but TorchSide\.forward takes 1 in order: x"),
    ],
)
def test_what_cannot_be_compared_is_said_in_one_line(source, side, inputs, said):
    with pytest.raises(WeighbridgeError, match=said) as caught:
        weighbridge.assert_parity(source, side(source), inputs)
    assert "\n" not in str(caught.value)


def test_what_a_port_raises_is_in_the_report(source):
    with pytest.raises(AssertionError, match="KeyError: 'my mistake'"):
        weighbridge.assert_parity(source, Raising(source), INPUTS)


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


class Halved(layers.Module):
    """Something of one's own that depends on the mode."""

    def __call__(self, x):
        return x / 2 if self.training else x


@pytest.mark.parametrize("more", [None, layers.Dropout(0.5), Halved()], ids=["none", "drop", "own"])
def test_train_mode_is_reported_where_something_asks_for_it(source, more):
    """A new module of MLX is in train mode, whatever is in it."""
    module = MlxSide(source)
    module.acts = [layers.gelu] if more is None else [layers.Sequential(layers.GELU(), more)]
    missed = compare_modules(source.train(), module, INPUTS).provenance["not_checked"]
    assert any("the MLX module" in it and "train mode" in it for it in missed) == bool(more)
    assert not any("the torch model" in line for line in missed)
    source.dropout = nn.Dropout()
    missed = compare_modules(source, module.eval(), INPUTS).provenance["not_checked"]
    assert [line for line in missed if "train mode" in line and "the torch model" in line]
    quiet = compare_modules(source.eval(), module, INPUTS).provenance["not_checked"]
    assert not [line for line in quiet if "train mode" in line]
