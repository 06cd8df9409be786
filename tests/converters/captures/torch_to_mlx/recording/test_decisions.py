"""Decisions by masks hold for masks that decide as the example's does, and others give NaN; what else decides is refused.

A recording that was kept of another mask would give NaN for the example itself.
"""

from __future__ import annotations

import mlx.core as mx
import pytest
import torch

from weighbridge.converters.captures import capture
from weighbridge.converters.common.arrays import to_mlx, to_torch
from weighbridge.errors import UnsupportedError
from weighbridge.tests.support.captures.asserting import Asserting

NONE, SOME = torch.ones(2, 3, dtype=torch.long), torch.tensor([[1, 1, 1], [1, 1, 0]])


class Hiding(torch.nn.Module):
    def forward(self, x, attention_mask):
        hidden = attention_mask == 0
        if hidden.any().item() or attention_mask.sum() < 2:
            x = x.masked_fill(hidden, 0)
        return x * 2, hidden


@pytest.mark.parametrize(("example", "other"), [(NONE, SOME), (SOME, NONE)])
def test_other_decisions_by_masks_give_nan(example, other):
    module, x = Hiding(), torch.randn(2, 3)
    captured = capture(module, inputs={"x": x, "attention_mask": example})
    found, hidden = captured(to_mlx(x), to_mlx(example))
    expected = module(x, example)
    assert torch.equal(to_torch(found), expected[0])
    assert torch.equal(to_torch(hidden), expected[1])
    assert mx.isnan(captured(to_mlx(x), to_mlx(other))[0]).all()
    gradient = mx.grad(lambda x: captured(x, to_mlx(example))[0].sum())(to_mlx(x))
    assert torch.equal(to_torch(gradient), 2.0 * (example != 0 if example is SOME else NONE))


class Passing(torch.nn.Module):
    def forward(self, x, attention_mask):
        if (attention_mask == 0).any():
            x = x * 2
        return x, x


@pytest.mark.parametrize(("example", "other"), [(NONE, SOME), (SOME, NONE)])
def test_a_result_that_is_an_input_gives_nan_too(example, other):
    x = torch.randn(2, 3)
    captured = capture(Passing(), inputs={"x": x, "attention_mask": example})
    for found in captured(to_mlx(x), to_mlx(example)):
        assert torch.equal(to_torch(found), Passing()(x, example)[0])
    for found in captured(to_mlx(x), to_mlx(other)):
        assert mx.isnan(found).all()


class Pointing(torch.nn.Module):
    def forward(self, x, attention_mask):
        return (x if attention_mask.all() else -x).argmax(-1)


def test_decisions_that_no_result_can_show_are_refused():
    with pytest.raises(UnsupportedError, match="decides by a tensor's values"):
        capture(Pointing(), inputs={"x": torch.randn(2, 3), "attention_mask": NONE})


class Choosing(torch.nn.Module):
    def forward(self, x, attention_mask):
        return x * 2 if (x * attention_mask).sum() > 0 else x


def test_decisions_by_anything_else_are_refused():
    with pytest.raises(UnsupportedError, match="decides by a tensor's values"):
        capture(Choosing(), inputs={"x": torch.ones(2, 3), "attention_mask": NONE})


class Parts(torch.nn.Module):
    """Packs rows that a mask shows, and looks at them in parts whose lengths say how many there are."""

    def __init__(self, read):
        super().__init__()
        self.read = read

    def forward(self, x, attention_mask):
        rows = self.read(x, attention_mask)
        return torch.cat([part.softmax(0) for part in rows.split([2, 3])])


READS = {
    "by the mask": lambda x, mask: x[mask > 0],
    "by places": lambda x, mask: x.reshape(-1, 4)[mask.flatten().nonzero().squeeze(-1)],
}


@pytest.mark.parametrize("read", READS.values(), ids=list(READS))
def test_as_many_rows_are_read_as_the_example_has_and_other_numbers_give_nan(read):
    module, x = Parts(read), torch.randn(2, 3, 4)
    captured = capture(module, inputs={"x": x, "attention_mask": SOME})
    for given, mask in ((x, SOME), (-2 * x, SOME.flip(0, 1))):  # other rows, as many
        own, weight = given.clone().requires_grad_(), torch.randn(5, 4)
        expected = module(own, mask)
        (expected * weight).sum().backward()
        found = captured(to_mlx(given), to_mlx(mask))
        torch.testing.assert_close(to_torch(found), expected.detach())
        arrays = to_mlx(mask), to_mlx(weight)
        gradient = mx.grad(lambda x, m, w: (captured(x, m) * w).sum())(to_mlx(given), *arrays)
        torch.testing.assert_close(to_torch(gradient), own.grad)
    assert mx.isnan(captured(to_mlx(x), to_mlx(NONE))).all()


def test_rows_that_values_choose_are_refused_though_lengths_say_how_many():
    module, x = Parts(lambda x, mask: x[(x[..., 0] > 0) & (mask > 0)]), torch.randn(2, 3, 4)
    x[..., 0] = SOME - 0.5
    with pytest.raises(UnsupportedError, match=r"as many rows as values say"):
        capture(module, inputs={"x": x, "attention_mask": NONE})


class Marking(torch.nn.Module):
    """Changes the rows that a mask shows, if there are any."""

    def __init__(self, alone):
        super().__init__()
        self.mark, self.alone = torch.nn.Linear(4, 4), alone

    def forward(self, x, mask):
        out = x.clone()
        if mask.any() and self.alone:
            out[mask] = self.mark(x[mask])
        elif mask.any():
            out[mask] += self.mark.bias
        return out


@pytest.mark.parametrize("alone", [True, False])
def test_rows_are_written_where_a_mask_shows_any_and_none_gives_nan(alone):
    module, sizes = Marking(alone), {0: "batch", 1: "time"}
    given = {"x": torch.randn(2, 3, 4), "mask": SOME > 0}
    captured = capture(module, inputs=given, dynamic={"x": sizes, "mask": sizes})
    for shape in ((2, 3), (1, 1), (3, 5)):
        mask = torch.rand(shape) > 0.5
        mask[0, 0] = True
        x = torch.randn(*shape, 4)
        found = captured(to_mlx(x), to_mlx(mask))
        torch.testing.assert_close(to_torch(found), module(x, mask).detach())
    assert mx.isnan(captured(to_mlx(x), to_mlx(mask & False))).all()


class Spread(torch.nn.Module):
    """Rows taken as they do not lie in memory, beside an answer by a mask's values, as in Longformer."""

    def forward(self, x, attention_mask):
        y = (x * 2).transpose(0, 1).reshape(-1).clone()
        y[:2] += 1
        return y * 3 if (attention_mask < 0).any().item() else y


class Pieces(torch.nn.Module):
    """Attention within pieces whose lengths are numbers of the input, as in Qwen2-VL's tower."""

    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(4, 12)

    def forward(self, x, ends):
        parts = self.qkv(x).reshape(len(x), 3, 2, 2).permute(1, 2, 0, 3).unbind(0)
        lengths = ends[1:] - ends[:-1]
        pieces = [torch.split(part[None], lengths.tolist(), dim=2) for part in parts]
        attend = torch.nn.functional.scaled_dot_product_attention
        return torch.cat([attend(*piece) for piece in zip(*pieces, strict=True)], dim=2)


IDS = torch.tensor([[1, 3, 2], [3, 4, 5]])


@pytest.mark.parametrize(
    ("module", "inputs"),
    [
        (Spread(), {"x": torch.randn(2, 3), "attention_mask": NONE}),
        (Asserting(), {"ids": IDS}),
        (Pieces(), {"x": torch.randn(6, 4), "ends": torch.tensor([0, 6])}),
        (Pieces(), {"x": torch.randn(6, 4), "ends": torch.tensor([0, 2, 6])}),
    ],
    ids=["spread", "assert", "one piece", "two pieces"],
)
def test_numbers_that_the_example_decides_are_recorded(module, inputs):
    found = capture(module, inputs=inputs)(**{name: to_mlx(x) for name, x in inputs.items()})
    torch.testing.assert_close(to_torch(found), module(**inputs).detach())


def test_a_buffer_that_is_written_as_it_is_stays_no_output():
    class Moved(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.randn(3, 4), persistent=False)

        def forward(self, x):
            self.table = self.table.to(x.device, x.dtype)
            return x + self.table

    module, x = Moved(), torch.randn(3, 4)
    assert torch.equal(to_torch(capture(module, inputs={"x": x})(to_mlx(x))), module(x))
