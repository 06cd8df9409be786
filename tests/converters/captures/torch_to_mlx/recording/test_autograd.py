"""A ``torch.autograd.Function`` keeps its own backward; hooks of the backward pass are refused."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

from weighbridge.converters.captures import capture
from weighbridge.converters.captures.torch_to_mlx.dtypes import to_mlx
from weighbridge.errors import UnsupportedError


class Straight(Function):
    """The sign, with the gradient of a clamped identity."""

    @staticmethod
    def forward(ctx, x, width):
        ctx.save_for_backward(x)
        ctx.width = width
        return x.sign()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() < ctx.width), None


class Reversed(Function):
    """The identity, with the gradient's sign turned; an input comes back as it is."""

    @staticmethod
    def forward(x, factor):
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.factor = inputs

    @staticmethod
    def backward(ctx, gradient):
        return -ctx.factor * gradient, None


class Halves(Function):
    """Two outputs of two inputs, a mask that is an output too, and sizes kept as attributes."""

    @staticmethod
    def forward(ctx, x, y, others):
        ctx.half = x.shape[-1] // 2
        ctx.mask = x > 0
        mask = ctx.mask.float()
        ctx.mark_non_differentiable(mask)
        ctx.save_for_backward(y, others["scale"])
        return (
            x[..., : ctx.half] * y.sum(),
            {"mask": mask}["mask"],
            x[..., ctx.half :] * others["scale"],
        )

    @staticmethod
    def backward(ctx, first, _, last):
        y, scale = ctx.saved_tensors
        gradient = torch.cat([first, 3 * last * scale], -1) * ctx.mask
        return gradient, (first.sum() * torch.ones_like(y)), None


class Noisy(Function):
    """Random numbers of the forward pass, used again in the backward pass."""

    @staticmethod
    def forward(ctx, x):
        ctx.noise = torch.rand_like(x)
        return x + ctx.noise

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.noise


class InPlace(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


straight = Straight.apply  # taken off its class before anything is recorded


class Binary(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x):
        for layer in self.layers:
            x = straight(layer(x), 1.0) + Reversed.apply(x, 0.5)
        first, mask, last = Halves.apply(x, x * 2, {"scale": x.mean()})
        return torch.cat([first, last], -1) * mask


class Rematerialised(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.layer, self.reentrant = nn.Linear(4, 4), reentrant

    def forward(self, x):
        hidden = checkpoint(self.layer, x, use_reentrant=self.reentrant)
        return checkpoint(
            lambda y: straight(self.layer(y), 2.0), hidden, use_reentrant=self.reentrant
        )


def compare(module, x, gradients_of, assert_same, captured):
    weights = torch.randn_like(module(x))
    module.zero_grad()
    (module(x) * weights).sum().backward()
    assert_same(captured(x=to_mlx(x)), module(x), 2e-6)
    _, found = gradients_of(captured, lambda out: (out * to_mlx(weights)).sum(), x=to_mlx(x))
    for name, parameter in module.named_parameters():
        assert_same(found[name], parameter.grad, 1e-5)
        assert parameter.grad.abs().max() > 0


def test_own_gradients_of_functions_are_those_of_torch_at_every_size(gradients_of, assert_same):
    module = Binary()
    captured = capture(module, inputs={"x": torch.randn(3, 4)}, dynamic={"x": {0: "rows"}})
    for rows in (3, 1, 5):
        compare(module, torch.randn(rows, 4), gradients_of, assert_same, captured)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_modules_keep_their_gradients(reentrant, gradients_of, assert_same):
    module = Rematerialised(reentrant)
    x = torch.randn(3, 4, requires_grad=True)
    captured = capture(module, inputs={"x": x})
    compare(module, x, gradients_of, assert_same, captured)


@pytest.mark.compiled
def test_own_gradients_hold_in_a_compiled_step():
    captured = capture(Binary(), inputs={"x": torch.randn(3, 4)})
    x = mx.random.normal((3, 4))
    gradient = mx.grad(lambda a: captured(x=a).sum())
    np.testing.assert_allclose(mx.compile(gradient)(x), gradient(x), rtol=1e-6, atol=1e-6)


class Applying(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function.apply(x)


def test_random_numbers_of_the_forward_pass_come_back_in_the_backward_pass():
    captured = capture(Applying(Noisy), inputs={"x": torch.zeros(100)})
    output, gradient = mx.vjp(lambda x: captured(x=x), [mx.zeros(100)], [mx.ones(100)])
    np.testing.assert_array_equal(output[0], gradient[0])
    assert float(mx.std(output[0])) > 0.2


def test_a_function_that_changes_its_inputs_is_refused_with_its_name():
    with pytest.raises(UnsupportedError, match=r"Function InPlace changes its inputs in place"):
        capture(Applying(InPlace), inputs={"x": torch.ones(3)})


class Unknown(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return torch.special.bessel_j0(x) * gradient if x.sum() > 0 else gradient


class Odd(Unknown):
    @staticmethod
    def backward(ctx, gradient):
        return torch.special.bessel_j0(gradient)


def test_a_backward_that_cannot_run_is_refused_before_anything_runs():
    with pytest.raises(UnsupportedError, match=r"backward of .*Function Unknown.*test_autograd"):
        capture(Applying(Unknown), inputs={"x": torch.ones(3)})
    with pytest.raises(UnsupportedError, match=r"bessel_j0"):
        capture(Applying(Odd), inputs={"x": torch.ones(3)})


def test_hooks_of_the_forward_pass_are_recorded(assert_same):
    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    module.register_forward_hook(lambda _, inputs, output: output + 5)
    module[0].register_forward_pre_hook(lambda _, inputs: (inputs[0] * 3,))
    x = torch.randn(2, 3)
    assert_same(capture(module, inputs={"input": x})(input=to_mlx(x)), module(x), 2e-6)


class Hooked(nn.Module):
    def forward(self, x):
        y = x * 2
        y.register_hook(lambda gradient: gradient * 2)
        return y


def test_hooks_that_change_gradients_are_refused_by_name():
    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    module[0].weight.register_hook(lambda gradient: gradient * 2)
    module[1].register_full_backward_hook(lambda *_: None)
    with pytest.raises(UnsupportedError) as caught:
        capture(module, inputs={"input": torch.ones(2, 3)})
    assert "module 1: " in str(caught.value)
    assert "parameter 0.weight: " in str(caught.value)
    with pytest.raises(UnsupportedError, match=r"hook of a tensor's gradient.*y\.register_hook"):
        capture(Hooked(), inputs={"x": torch.ones(3)})
    y = torch.ones(3, requires_grad=True) * 2
    y.register_hook(lambda gradient: gradient)  # what was put in place is gone again
