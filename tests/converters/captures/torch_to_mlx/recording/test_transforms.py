"""Modules that differentiate by ``torch.func`` in their forward, as networks of energies and forces do."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, grad_and_value, hessian, jacrev, vjp, vmap
from torch.utils.checkpoint import checkpoint

import weighbridge
from weighbridge.converters.common.arrays import to_mlx, to_torch
from weighbridge.errors import UnsupportedError


class Differentiated(nn.Module):
    """Two layers, and a derivative of them."""

    def __init__(self, compute):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.compute = compute

    def forward(self, x):
        return self.compute(self, x)

    def energy(self, x):
        return self.last(torch.tanh(self.first(x))).square().sum()


def _of_weights(module, x):
    weights = dict(module.first.named_parameters())
    found = grad(lambda own: functional_call(module.first, own, (x,)).square().sum())(weights)
    return found["weight"]


CASES = {
    "of a function": lambda module, x: grad(lambda a: a.sin().sum())(x) * module.first(x),
    "of layers, by the input": lambda module, x: grad(module.energy)(x),
    "and the value": lambda module, x: torch.cat(
        [part.reshape(-1) for part in grad_and_value(module.energy)(x)]
    ),
    "by weights": _of_weights,
    "of what came before": lambda module, x: grad(lambda a: (a.reshape(-1) ** 3).sum())(
        module.first(x)
    ),
    "of a derivative": lambda module, x: grad(
        lambda a: grad(lambda b: (b**3).sum())(a).square().sum()
    )(module.first(x)),
    "of each row": lambda module, x: vmap(grad(module.energy))(x),
    "all of them": lambda module, x: jacrev(module.first)(x[:2]).sum(0),
    "twice": lambda module, x: hessian(module.energy)(x[:2]).sum((0, 1)),
    "a product with it": lambda module, x: vjp(module.first, x)[1](torch.ones_like(x))[0] * x,
}


@pytest.mark.parametrize("dynamic", [None, {"x": {0: "rows"}}], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("name", CASES)
def test_derivatives_and_their_gradients_are_those_of_torch(gradients_of, name, dynamic):
    module, x = Differentiated(CASES[name]), torch.randn(3, 4)
    captured = weighbridge.capture(module, inputs={"x": x}, dynamic=dynamic)
    x = torch.randn(5 if dynamic else 3, 4)
    wanted = module(x)
    wanted.square().sum().backward()
    assert torch.allclose(to_torch(captured(x=to_mlx(x))), wanted, rtol=1e-5, atol=1e-6)
    _, found = gradients_of(captured, lambda out: (out * out).sum(), x=to_mlx(x))
    for parameter, tensor in module.named_parameters():
        theirs = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
        scale = float(theirs.abs().max().clamp(min=1.0))
        assert float((to_torch(found[parameter]) - theirs).abs().max()) < 1e-5 * scale, parameter


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside"])
def test_a_derivative_by_autograd_is_refused_with_the_cure(beside):
    def compute(module, x):
        own = x.detach().requires_grad_()
        (found,) = torch.autograd.grad(module.energy(own), own, create_graph=True)
        return found + (grad(module.energy)(x) if beside else 0)

    with pytest.raises(UnsupportedError, match=r"torch\.func\.grad"):
        weighbridge.capture(Differentiated(compute), inputs={"x": torch.randn(3, 4)})


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * 1.0

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g * 2


def _without_gradient(module, x):
    with torch.no_grad():
        return module.first(x)


def _switched_off(module, x):
    torch.set_grad_enabled(False)
    found = module.first(x)
    torch.set_grad_enabled(True)
    return found


@pytest.mark.parametrize(
    "part",
    [
        _without_gradient,
        _switched_off,
        torch.no_grad()(lambda module, x: module.first(x)),
        lambda module, x: Doubling.apply(module.first(x)),
        lambda module, x: module.first(x).detach(),
        lambda module, x: module.first(x).data,
        lambda module, x: checkpoint(module.first, x, use_reentrant=False),
    ],
    ids=["in a block", "switched", "decorated", "own backward", "detached", "data", "checkpoint"],
)
def test_what_stops_or_changes_a_gradient_beside_is_kept_or_refused(gradients_of, part):
    module = Differentiated(lambda module, x: grad(module.energy)(x) * part(module, x))
    x = torch.randn(3, 4)
    try:
        captured = weighbridge.capture(module, inputs={"x": x})
    except UnsupportedError:
        return
    module(x).square().sum().backward()
    _, found = gradients_of(captured, lambda out: (out * out).sum(), x=to_mlx(x))
    assert torch.allclose(to_torch(found["first.weight"]), module.first.weight.grad, rtol=1e-4)
