"""Sums of weights and updates that are rounded as they are trained, against an estimator in torch's autograd."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as mlx_nn
import numpy as np
import pytest
import torch
from mlx.utils import tree_flatten
from torch import nn

from weighbridge.converters.captures import capture
from weighbridge.converters.quantization import Blocks, Scheme, quantize
from weighbridge.converters.values import LowRank
from weighbridge.errors import MismatchError

SCHEMES = [
    *(Scheme(bits, 32) for bits in (2, 3, 4, 5, 6, 8)),
    *(Scheme.of({"mode": mode}) for mode in ("mxfp4", "mxfp8", "nvfp4")),
]
OUT, IN, RANK, SCALE = 8, 64, 3, 2.0


class Nearest(torch.autograd.Function):
    """The nearest of all the values that the codes of a group have; to the gradient nothing."""

    @staticmethod
    def forward(_, wanted, blocks):
        others = {part: array for part, array in blocks.parts.items() if part != "weight"}
        every = np.stack(
            [
                Blocks.of_codes(
                    np.full(blocks.shape, code, np.uint8), others, blocks.scheme
                ).values()
                for code in range(1 << blocks.scheme.bits)
            ],
            axis=-1,
        )
        distances = np.abs(every - wanted.detach().double().numpy()[..., None])
        places = np.nanargmin(np.nan_to_num(distances, nan=np.inf), axis=-1)[..., None]
        return torch.from_numpy(np.take_along_axis(every, places, axis=-1)[..., 0]).float()

    @staticmethod
    def backward(_, gradient):
        return gradient, None


def made(scheme, *, dora=False, dense=False):
    """Return a linear layer, its blocks, and an update of about a step."""
    generator = np.random.default_rng(scheme.bits)
    weight = generator.normal(0, 0.5, (OUT, IN)).astype(np.float32)
    blocks = Blocks(quantize(weight, scheme, "F16"), scheme)
    layer = nn.Linear(IN, OUT)
    layer.weight.data = torch.from_numpy(weight if dense else blocks.dense())
    a, b = (
        generator.normal(0, 0.2, shape).astype(np.float32) for shape in ((RANK, IN), (OUT, RANK))
    )
    lengths = np.linalg.norm(weight, axis=1) * generator.uniform(0.8, 1.2, OUT)
    return layer, blocks, LowRank(a, b, SCALE, lengths.astype(np.float32) if dora else None)


def reference(layer, blocks, update, x):
    """Return the output and the gradients of x, lora_a, lora_b and lora_m, by torch's autograd."""
    factors = [update.a.T, update.b.T, *([] if update.magnitude is None else [update.magnitude])]
    leaves = [torch.tensor(np.array(it), requires_grad=True) for it in (x, *factors)]
    given, a, b, *rest = leaves
    wanted = layer.weight.detach() + SCALE * (a @ b).T
    if rest:
        wanted = wanted * (rest[0] / wanted.detach().norm(dim=1))[:, None]
    output = nn.functional.linear(given, Nearest.apply(wanted, blocks), layer.bias.detach())
    torch.sin(output).sum().backward()
    return output.detach().numpy(), [it.grad.numpy() for it in leaves]


@pytest.mark.parametrize("dense", [False, True], ids=["of codes", "dense"])
@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_the_gradient_is_that_of_a_straight_through_estimator(scheme, dora, dense):
    layer, blocks, update = made(scheme, dora=dora, dense=dense)
    x = np.random.default_rng(3).normal(size=(5, IN)).astype(np.float32)
    captured = capture(layer, inputs={"input": torch.from_numpy(x)})
    if not dense:
        captured.set_blocks({"weight": blocks})
    captured.set_adapters({"weight": update}, grids={"weight": blocks})

    def loss(values):
        return mx.sin(captured(input=values)).sum()

    output, expected = reference(layer, blocks, update, x)
    assert np.allclose(np.array(captured(input=mx.array(x))), output, atol=1e-5)
    by_input = np.array(mx.grad(loss)(mx.array(x)))
    gradients = dict(tree_flatten(mlx_nn.value_and_grad(captured, loss)(mx.array(x))[1]))
    found = [by_input, *(np.array(gradients[it]) for it in sorted(gradients))]
    assert sorted(gradients) == ["lora_a", "lora_b", "lora_m"][: len(gradients)]
    for ours, theirs in zip(found, expected, strict=True):
        assert np.allclose(ours, theirs, atol=1e-4 * np.abs(theirs).max())


def test_an_embedding_is_rounded_with_its_update_and_gives_that_back():
    table = nn.Embedding(12, 64)
    scheme = Scheme(4, 32)
    blocks = Blocks(quantize(table.weight.detach().numpy(), scheme, "F32"), scheme)
    generator = np.random.default_rng(0)
    update = LowRank(generator.normal(size=(2, 64)), generator.normal(size=(12, 2)), 0.5)
    captured = capture(table, inputs={"input": torch.arange(12)})
    captured.set_adapters({"weight": update}, grids={"weight": blocks})
    wanted = update.applied_to(table.weight.detach().numpy())
    rounded = Nearest.apply(torch.from_numpy(wanted), blocks).numpy()
    assert np.allclose(np.array(captured(input=mx.arange(12))), rounded, atol=1e-5)
    assert np.allclose(captured.adapter_updates()["weight"].delta(), update.delta(), atol=1e-6)


def test_a_grid_of_another_shape_is_refused():
    layer, _, update = made(Scheme(4, 32))
    _, other, _ = made(Scheme(4, 64))
    captured = capture(layer, inputs={"input": torch.zeros(2, IN)})
    half = Blocks({part: array[: OUT // 2] for part, array in other.parts.items()}, other.scheme)
    with pytest.raises(MismatchError, match=r"expected \[8, 64\], found \[4, 64\]"):
        captured.set_adapters({"weight": update}, grids={"weight": half})
