"""Models of the recipes: built from options, captured whole, the same numbers in MLX and PyTorch."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import torch

import weighbridge
from weighbridge.errors import BadInputError
from weighbridge.trainers.models import gated_gpt, indicators
from weighbridge.trainers.models.blocks import Sizes, stacked
from weighbridge.trainers.models.units import GATED, UNITS

SMALL = {"width": 16, "layers": 2, "heads": 2}


def with_gain(module):
    """Return MODULE with weights of a size at which every part of it counts."""
    torch.manual_seed(0)
    for weight in module.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=1.5 / weight.shape[-1] ** 0.5)
    return module


def gradients(module, inputs):
    module(**inputs).square().mean().backward()
    return {name: it.grad.numpy() for name, it in module.named_parameters()}


def agree(module, inputs):
    """Compare outputs and all gradients in MLX with PyTorch's."""
    example = {name: it.numpy() for name, it in inputs.items()}
    dynamic = {name: {0: "batch", 1: "sequence"} for name in inputs}
    captured = weighbridge.capture(module, to="mlx", inputs=example, dynamic=dynamic)
    arrays = {name: mx.array(it) for name, it in example.items()}
    found = captured(**arrays)
    np.testing.assert_allclose(np.array(found), module(**inputs).detach().numpy(), atol=2e-5)
    differentiate = mx.grad(lambda weights: _called(captured, weights, arrays).square().mean())
    mine = dict(_flat(differentiate(captured.trainable_parameters())))
    theirs = gradients(module, inputs)
    assert mine.keys() == theirs.keys()
    largest = max(np.abs(it).max() for it in theirs.values())
    for name, gradient in theirs.items():
        np.testing.assert_allclose(np.array(mine[name]), gradient, atol=1e-5 * largest)
        assert np.abs(gradient).max() > 0, name


def _called(captured, weights, arrays):
    captured.update(weights)
    return captured(**arrays)


def _flat(tree):
    from mlx.utils import tree_flatten

    return tree_flatten(tree)


@pytest.mark.parametrize("unit", UNITS)
def test_a_decoder_of_every_unit_is_the_same_in_mlx(unit):
    module = with_gain(gated_gpt.build(unit=unit, vocabulary=32, positions=8, **SMALL))
    agree(module, {"input_ids": torch.randint(0, 32, (3, 8))})


def test_a_classifier_is_the_same_in_mlx():
    module = with_gain(indicators.build(features=5, window=6, **SMALL))
    agree(module, {"series": torch.randn(3, 6, 5)})


def test_a_position_of_the_decoder_does_not_see_what_follows():
    module = with_gain(gated_gpt.build(vocabulary=32, positions=8, **SMALL))
    ids = torch.randint(0, 32, (1, 8))
    other = ids.clone()
    other[:, 5:] = (other[:, 5:] + 1) % 32
    first, second = module(ids), module(other)
    torch.testing.assert_close(first[:, :5], second[:, :5])
    assert not torch.allclose(first[:, 5:], second[:, 5:])


def test_all_units_have_about_the_same_number_of_parameters():
    counts = {
        unit: sum(map(torch.numel, gated_gpt.build(unit=unit).parameters())) for unit in UNITS
    }
    assert max(counts.values()) <= 1.01 * min(counts.values())


def test_learned_numbers_of_gates_have_no_axis():
    shapes = {
        unit: [p.shape for p in GATED[unit]().parameters()] for unit in ("swish_glu", "blend_glu")
    }
    assert shapes == {"swish_glu": [()], "blend_glu": [()]}


@pytest.mark.parametrize("build", [gated_gpt.build, indicators.build])
def test_a_seed_gives_the_same_weights_whatever_was_drawn_before(build):
    one = build(seed=1).state_dict()
    torch.rand(5)
    two, three = build(seed=1).state_dict(), build(seed=2).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert any(not torch.equal(one[name], three[name]) for name in one)


def test_an_unknown_unit_is_refused_with_the_known_ones():
    with pytest.raises(BadInputError, match="swiglu"):
        gated_gpt.build(unit="swigloo")


@pytest.mark.parametrize("layers", [0, -1])
def test_a_transformer_without_blocks_is_refused(layers):
    with pytest.raises(BadInputError, match=f"layers is {layers}; "):
        stacked(Sizes(16, layers, 2, "gelu", 0.0), causal=True)
