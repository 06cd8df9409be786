"""Whole modules of MLX in torch: values and gradients are MLX's, at the sizes traced and at others."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import torch
from mlx import nn
from mlx.utils import tree_flatten

from weighbridge.converters.captures.mlx_to_torch import capture_mlx
from weighbridge.tests.support.mlx_modules import MODULES, VOCABULARY, built

BAR = 1e-5  # of the largest value; of gradients, of the largest among all parameters
LARGE = {"qwen3_moe": [(6, 9), (8, 12)]}  # sizes that mlx-lm computes alike


def inputs_of(signature, sizes):
    draw, known = np.random.default_rng(0), dict(zip(("batch", "sequence"), sizes, strict=True))
    made = {}
    for port in signature.inputs:
        shape = [known[size] if isinstance(size, str) else size for size in port.shape]
        whole = draw.integers(0, 2 if port.role == "attention_mask" else VOCABULARY, shape)
        made[port.name] = whole if port.dtype == "int64" else draw.normal(size=shape).astype("f4")
        if port.role == "attention_mask":
            made[port.name][:, 0] = 1
    return made


@pytest.mark.parametrize("name", MODULES)
def test_a_module_gives_the_values_and_gradients_of_mlx(name):
    module, signature = built(name)
    sizes = LARGE.get(name, [(2, 5), (3, 11)])
    captured = capture_mlx(module, inputs=inputs_of(signature, sizes[0]), dynamic=signature.dynamic)
    inputs = inputs_of(signature, sizes[1])
    arrays = {key: mx.array(it) for key, it in inputs.items()}
    wanted, found = module(**arrays), captured(**{k: torch.tensor(it) for k, it in inputs.items()})
    weight = np.random.default_rng(1).normal(size=found.shape).astype("f4")
    (found * torch.tensor(weight)).sum().backward()

    def loss():
        return (module(**arrays) * mx.array(weight)).sum()

    gradients = dict(tree_flatten(nn.value_and_grad(module, loss)()[1]))
    own = {key: it.grad for key, it in captured.named_parameters() if it.grad is not None}
    assert own.keys() == gradients.keys()
    value = np.array(wanted)
    assert np.abs(found.detach().numpy() - value).max() <= BAR * np.abs(value).max()
    largest = max(mx.abs(it).max().item() for it in gradients.values())
    gaps = {key: np.abs(np.array(it) - own[key].numpy()).max() for key, it in gradients.items()}
    assert {key: gap for key, gap in gaps.items() if gap > BAR * largest} == {}
