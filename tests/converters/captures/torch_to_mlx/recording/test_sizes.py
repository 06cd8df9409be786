"""Sizes that vary: what a module decides by them holds for the example, and other sizes must agree."""

import pytest
import torch
from torch.nn import functional

from weighbridge.converters.captures import capture
from weighbridge.converters.captures.torch_to_mlx.dtypes import to_mlx, to_torch
from weighbridge.errors import MismatchError


class Sized(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def by_remainder(x):
    return x if x.shape[1] % 2 == 0 else -x


def by_product(x):
    return x * 2 if x.numel() > 20 else x


def by_two(x):
    return x * 2 if x.shape[0] == x.shape[1] else x


def by_loop(x):
    return sum(x[:, i] * (i + 1) for i in range(x.shape[1] // 2))


def by_number(x):
    return x * 2 if x.shape[1] != 6 else x


def in_pieces(x):
    return sum(piece.sum(1) * i for i, piece in enumerate(x.split(2, 1)))


def in_parts(x):
    return sum(part.mean(1) * (i + 1) for i, part in enumerate(torch.tensor_split(x, 3, 1)))


def in_halves(x):
    return torch.hsplit(x, 2)[1] * 2


def by_windows(x):
    return x.unfold(1, x.shape[1] // 2, 1).sum(-1)


def by_number_of_a_layer(x):
    return functional.layer_norm(x, (2,), eps=1 / x.shape[1])


def by_one_row(x):
    return x * 2 if x.shape[0] > 1 else x


def by_one_step(x):
    return x if x.shape[1] == 1 else x - x.mean(1, keepdim=True) / 2


def by_failure(x):
    try:
        return x.reshape(x.shape[0], -1, 6).sum(1)
    except RuntimeError:
        return x.sum(1)


def padded(x):
    missing = -x.shape[1] % 4
    if missing > 0:
        x = functional.pad(x, (0, 0, 0, missing))
    return x.reshape(x.shape[0], -1, 4, 2).sum(1)


def attended(x):
    causal = bool(x.shape[1] > 1)
    return functional.scaled_dot_product_attention(x, x, x, is_causal=causal)


CASES = {  # function -> sizes that decide as the example's, and others
    by_remainder: ([(2, 4), (3, 6), (1, 2)], [(2, 3), (2, 5), (1, 1)]),
    by_product: ([(2, 4), (1, 3), (3, 3)], [(3, 5), (2, 8)]),
    by_two: ([(2, 4), (1, 3), (3, 2)], [(3, 3)]),
    by_loop: ([(2, 4), (1, 5)], [(2, 6), (1, 3)]),
    by_number: ([(2, 4), (3, 7), (1, 1)], [(2, 6)]),
    in_pieces: ([(2, 4), (1, 3)], [(2, 2), (1, 6)]),
    in_parts: ([(2, 4), (3, 7), (1, 10)], [(2, 3), (1, 5), (2, 6)]),
    in_halves: ([(2, 4), (3, 6), (1, 2)], [(2, 3), (1, 1)]),
    by_windows: ([(2, 4), (1, 5)], [(2, 6), (2, 8), (1, 3)]),
    by_number_of_a_layer: ([(2, 4), (1, 4)], [(2, 6), (2, 1)]),
    by_one_row: ([(2, 4), (3, 1)], [(1, 4), (1, 1)]),
    by_one_step: ([(2, 4), (1, 9)], [(1, 1), (2, 1)]),
    by_failure: ([(2, 4), (1, 5), (2, 1)], [(2, 6), (1, 3)]),
}


@pytest.mark.parametrize("function", CASES)
def test_sizes_that_decide_otherwise_are_refused_with_the_line(function):
    axes = {"x": {0: "batch", 1: "time"}}
    captured = capture(Sized(function), inputs={"x": torch.randn(2, 4, 2)}, dynamic=axes)
    alike, others = CASES[function]
    for shape in alike:
        x = torch.randn(*shape, 2)
        torch.testing.assert_close(to_torch(captured(to_mlx(x))), function(x))
    for shape in others:
        with pytest.raises(MismatchError, match="capture it again with such sizes"):
            captured(to_mlx(torch.randn(*shape, 2)))


def rounded(x):
    return x[:, : round(x.shape[1] * 0.6) + 1]


def spaced(x):
    down, across = torch.linspace(0, 1, x.shape[0]), torch.linspace(-1, x.shape[1], x.shape[1])
    return (
        x
        + torch.cartesian_prod(down, across).reshape(x.shape)
        + torch.logspace(0, 1, len(x[0]))[:, None]
    )


def paired(x):
    """Read what lies beside the diagonal by half of the length, as losses of two views do."""
    both = torch.cat([x, -x], 1)
    alike, count = both @ both.mT, x.shape[1]
    beside = alike.diagonal(count, 1, 2), torch.diagonal(alike, offset=-count, dim1=1, dim2=2)
    return sum(beside) + torch.diag(alike[0], count) + alike[0].diag(-count)


@pytest.mark.parametrize(
    ("function", "length"), [(padded, 5), (attended, 4), (rounded, 4), (spaced, 5), (paired, 4)]
)
def test_sizes_that_decide_otherwise_for_the_same_result_are_taken(function, length):
    axes = {"x": {0: "batch", 1: "time"}}
    captured = capture(Sized(function), inputs={"x": torch.randn(2, length, 2)}, dynamic=axes)
    for shape in ((2, length), (1, 8), (3, 1), (1, 1), (2, 16), (4, 6)):
        x = torch.randn(*shape, 2)
        torch.testing.assert_close(to_torch(captured(to_mlx(x))), function(x))


class Gated(torch.nn.Module):
    """Adds a mean through a gate that is 0 until it is trained."""

    def __init__(self):
        super().__init__()
        self.gate = torch.nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return x + self.gate * x.mean(1, keepdim=True) if x.shape[1] > 1 else x


def test_what_untrained_weights_hide_makes_a_difference():
    captured = capture(Gated(), inputs={"x": torch.randn(2, 4, 2)}, dynamic={"x": {1: "time"}})
    with pytest.raises(MismatchError, match="capture it again with such sizes"):
        captured(to_mlx(torch.randn(2, 1, 2)))
