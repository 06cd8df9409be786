"""Samples drawn in MLX: the distribution is torch's, by mean, spread and quartiles of many."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import torch
from torch.distributions import Beta, Chi2, Dirichlet, Gamma, NegativeBinomial, Normal, StudentT

from weighbridge.converters.captures import capture
from weighbridge.converters.captures.torch_to_mlx.dtypes import to_mlx
from weighbridge.errors import UnsupportedError
from weighbridge.tests.converters.captures.torch_to_mlx.conftest import Functions

MANY = torch.zeros(40_000)
DISTRIBUTIONS = {
    "uniform": lambda x: x.clone().uniform_(-1, 3),
    "normal": lambda x: x.clone().normal_(2, 3),
    "exponential": lambda x: x.clone().exponential_(0.5),
    "cauchy": lambda x: x.clone().cauchy_(1, 2),
    "geometric": lambda x: x.clone().geometric_(0.3),
    "log_normal": lambda x: x.clone().log_normal_(0.1, 0.5),
    "normal around tensors": lambda x: torch.normal(x + 1, 0.5),
    "normal with spreads": lambda x: torch.normal(0.0, x + 2),
    "randint": lambda x: torch.randint(3, 17, x.shape),
    "randint_like": lambda x: torch.randint_like(x, 9),
    "bernoulli": lambda x: torch.bernoulli(x + 0.3),
    "leaks": lambda x: torch.nn.functional.rrelu(x - 1, 0.1, 0.6, training=True),
    "sampled": lambda x: Normal(x + 1, x + 0.5).sample(),
    "whole numbers": lambda x: x.clone().random_(),
    "whole numbers below": lambda x: x.clone().random_(9),
    "whole numbers of 8 bits": lambda x: x.to(torch.uint8).random_(),
    "gamma of a small shape": lambda x: Gamma(x + 0.2, x + 3).rsample(),
    "gamma of a large shape": lambda x: Gamma(x + 700, x + 0.5).rsample(),
    "beta": lambda x: Beta(x + 0.4, x + 2).rsample(),
    "chi squared": lambda x: Chi2(x + 3).rsample(),
    "Student's t": lambda x: StudentT(x + 4).rsample(),
    "Poisson, nothing": torch.poisson,
    "Poisson, few": lambda x: torch.poisson(x + 0.7),
    "Poisson, just below many": lambda x: torch.poisson(x + 9.9),
    "Poisson, many": lambda x: torch.poisson(x + 10.1),
    "Poisson, very many": lambda x: torch.poisson(x + 2e5),
    "binomial, few": lambda x: torch.binomial(x + 20, x + 0.1),
    "binomial, almost all": lambda x: torch.binomial(x + 20, x + 0.9),
    "binomial, none": lambda x: torch.binomial(x + 20, x),
    "binomial, all": lambda x: torch.binomial(x + 20, x + 1),
    "binomial, many": lambda x: torch.binomial(x + 50, x + 0.35),
    "binomial, very many": lambda x: torch.binomial(x + 1e6, x + 0.7),
    "negative binomial": lambda x: NegativeBinomial(x + 5, x + 0.6).sample(),
    "multinomial": lambda x: torch.multinomial(torch.tensor([1.0, 0, 2, 5]), len(x), True),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_samples_are_distributed_as_in_torch(drawn, name):
    function = DISTRIBUTIONS[name]
    ours, theirs = drawn(function, MANY), function(MANY).numpy()
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    assert _apart(ours, theirs) < 0.02


def _apart(ours, theirs):
    """Return Kolmogorov and Smirnov's distance; two samples of 40,000 of one distribution pass 0.02 once in a million."""
    places = np.union1d(ours, theirs)
    both = (np.searchsorted(np.sort(it), places, side="right") / it.size for it in (ours, theirs))
    return np.abs(np.subtract(*both)).max()


EMPTY = {
    "Poisson": torch.poisson,
    "binomial": lambda x: torch.binomial(x, x),
    "gamma": torch._standard_gamma,
    "Dirichlet": torch._sample_dirichlet,
}


@pytest.mark.parametrize("name", EMPTY)
def test_of_nothing_nothing_is_drawn(drawn, name):
    assert drawn(EMPTY[name], torch.zeros(0, 3)).shape == (0, 3)


def test_each_draw_is_another(drawn):
    assert not np.array_equal(
        drawn(DISTRIBUTIONS["normal"], MANY), drawn(DISTRIBUTIONS["normal"], MANY)
    )


def test_draws_without_replacement_and_permutations_repeat_nothing(drawn):
    taken = drawn(lambda x: torch.multinomial(x + 1, 100), torch.zeros(5, 200))
    assert all(len(set(row)) == 100 for row in taken)
    assert sorted(drawn(lambda x: torch.randperm(len(x)), torch.zeros(30))) == list(range(30))


def test_weights_of_zero_are_never_drawn(drawn):
    weights = torch.tensor([0.0, 1, 0, 3])
    assert set(drawn(lambda w: torch.multinomial(w, 1000, True), weights)) == {1, 3}
    assert set(drawn(lambda w: torch.multinomial(w, 2), weights)) == {1, 3}


def test_draws_of_a_dirichlet_distribution_add_up_to_1_and_are_beta_each(drawn):
    shapes = torch.tensor([0.01, 0.5, 3.0])

    def function(x):
        return Dirichlet(x[:, None] + shapes).rsample()

    ours, theirs = drawn(function, MANY), function(MANY).numpy()
    np.testing.assert_allclose(ours.sum(-1), 1, rtol=1e-6)
    assert all(_apart(ours[:, k], theirs[:, k]) < 0.02 for k in range(3))


def test_two_draws_of_one_distribution_differ(drawn):
    """PyTorch marks neither of these operations as drawing."""
    for draw in (lambda x: torch.binomial(x + 20, x + 0.5), lambda x: torch.zeros(99).random_()):
        both = drawn(lambda x, draw=draw: torch.stack([draw(x), draw(x)]), MANY[:99])
        assert not np.array_equal(*both)


SHAPES = torch.tensor([0.01, 0.1, 0.5, 0.9, 1.0, 1.5, 3.0, 8.0, 30.0, 300.0, 3000.0])


@pytest.mark.parametrize("seed", range(3))
def test_a_gamma_draw_moves_with_its_shape_as_in_torch(agree, seed):
    torch.manual_seed(seed)
    draws = torch._standard_gamma(SHAPES.expand(50, -1)).clamp(min=1e-30)
    agree(
        {"gamma": (torch._standard_gamma_grad, SHAPES.expand(50, -1).clone(), draws)},
        rtol=1e-3,
        gradients=False,
    )


def test_the_gradient_of_a_gamma_draw_is_that_of_the_draw():
    module, inputs = Functions({"draw": (torch._standard_gamma, SHAPES)}), {"input_0_0": SHAPES}
    captured = capture(module, inputs=inputs)

    def drawn(shapes):
        mx.random.seed(5)
        return captured(input_0_0=shapes)["draw"]

    found = mx.grad(lambda shapes: drawn(shapes).sum())(to_mlx(SHAPES))
    draws = torch.tensor(np.array(drawn(to_mlx(SHAPES))))
    wanted = torch._standard_gamma_grad(SHAPES, draws)
    np.testing.assert_allclose(np.array(found), wanted.numpy(), rtol=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_draws_of_a_dirichlet_distribution_move_with_its_shapes_as_in_torch(agree, seed):
    torch.manual_seed(seed)
    shapes = SHAPES[:9].expand(200, -1).clone()
    draws = torch._sample_dirichlet(shapes).clamp(1e-6, 1 - 1e-6)
    totals = shapes.sum(-1, keepdim=True).expand_as(shapes).clone()
    agree({"grad": (torch._dirichlet_grad, draws, shapes, totals)}, rtol=1e-3, gradients=False)


def test_shapes_of_a_dirichlet_distribution_can_be_trained():
    """The mean of a draw moves with the shapes: its gradient, averaged over draws, is the mean's."""
    shapes = torch.tensor([0.7, 2.0, 5.0])
    function = lambda x: Dirichlet(x.expand(20_000, 3)).rsample()[:, 0].mean()  # noqa: E731
    captured = capture(Functions({"draw": (function, shapes)}), inputs={"input_0_0": shapes})
    found = mx.grad(lambda x: captured(input_0_0=x)["draw"])(to_mlx(shapes))
    x = shapes.clone().requires_grad_()
    (x[0] / x.sum()).backward()
    np.testing.assert_allclose(np.array(found), x.grad.numpy(), atol=0.004)


class Noisy(torch.nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def forward(self, x):
        return x * self.draw(x.detach() * 0)


@pytest.mark.parametrize(
    "name",
    [
        "normal around tensors",
        "exponential",
        "cauchy",
        "geometric",
        "binomial, few",
        "beta",
        "sampled",
    ],
)
def test_what_draws_is_not_computed_again_for_the_gradient(name):
    """The gradient of x * draw is the draw of the forward pass, not another."""
    inner, x = Noisy(DISTRIBUTIONS[name]), mx.arange(1.0, 10.0)
    captured = capture(torch.nn.Sequential(inner, torch.nn.Flatten(0)), inputs={"input": MANY[:9]})
    assert captured.checkpoint(["0"]) == {"0"}
    found: list[mx.array] = []

    def total(x):
        found.append(captured(input=x))
        return found[-1].sum()

    slope = mx.grad(total)(x)
    np.testing.assert_allclose(
        np.array(slope), np.array(mx.stop_gradient(found[-1]) / x), rtol=1e-6
    )


def test_a_gradient_that_torch_refuses_is_refused():
    x = torch.full((9,), 0.5)

    def slope(function):
        captured = capture(Functions({"draw": (function, x)}), inputs={"input_0_0": x})
        return mx.grad(lambda x: captured(input_0_0=x)["draw"].sum())(to_mlx(x))

    with pytest.raises(UnsupportedError, match=r"torch\.binomial has no gradient"):
        slope(lambda x: torch.binomial(x + 20, x))
    drawn = slope(lambda x: torch.distributions.Binomial(9, x).sample() + x * x)
    np.testing.assert_allclose(np.array(drawn), 1.0)


WITHOUT_GRADIENT = {
    "normal": lambda x: torch.normal(x, x + 1),
    "normal of one spread": lambda x: torch.normal(x, 0.5),
    "normal of one mean": lambda x: torch.normal(0.5, x + 1),
    "bernoulli": torch.bernoulli,
    "Poisson": torch.poisson,
    "normal in place": lambda x: (x * 2).normal_(),
    "uniform in place": lambda x: (x * 2).uniform_(),
    "exponential in place": lambda x: (x * 2).exponential_(),
}


@pytest.mark.parametrize("name", WITHOUT_GRADIENT)
def test_draws_without_a_gradient_in_torch_have_none(name):
    x = torch.full((50,), 0.5)

    def function(x):
        return WITHOUT_GRADIENT[name](x) + x * x

    captured = capture(Functions({"draw": (function, x)}), inputs={"input_0_0": x})
    found = mx.grad(lambda x: captured(input_0_0=x)["draw"].sum())(to_mlx(x))
    own = x.clone().requires_grad_()
    function(own).sum().backward()
    np.testing.assert_allclose(np.array(found), own.grad.numpy())
