"""Programs are freed of updates in place without a second trace, and mean what they did."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import torch
from torch.export import ExportedProgram

from weighbridge.converters.captures import capture
from weighbridge.errors import UnsupportedError


def updated_copy(x):
    y = x * 2
    y.add_(1).mul_(x)
    return y + x


def updated_view(x):
    y = x * 2
    y[:, 0].add_(1)
    return y


def updated_through_no_copy(x):
    y = x * 2
    y.contiguous().add_(1)
    return y


def updated_through_a_cast_to_the_same(x):
    y = x * 2
    y.to(torch.float32).add_(1)
    return y * y.type_as(x)


def updated_after_a_view(x):
    y = x * 2
    z = y.reshape(-1)
    y.mul_(3)
    return z


def updated_before_a_view(x):
    y = x @ x
    y.mul_(3)
    return y.reshape(-1)


def updated_in_a_block(x):
    with torch.no_grad():
        scale = x * 2
        scale.add_(1)
    return x * scale


def blocks_in_blocks(x):
    with torch.no_grad():
        y = x * x
        with torch.enable_grad():
            z = y * x
    return z * y * x


def mixed_precision_without_gradient(x):
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        y = x * 2
    return y * x


def no_gradient_in_mixed_precision(x):
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        y = x * 2
    return y * x


def switched_off_in_mixed_precision(x):
    with torch.autocast("cpu", enabled=False), torch.set_grad_enabled(False):
        y = x * 2
    return y * x


def pieces(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat([b.flatten(), a.reshape_as(b).flatten()]).contiguous()


def uneven_pieces(x):
    return torch.cat([piece.sum(1) for piece in x.chunk(3, dim=1)])


def rounded_update(x):
    y = (x * 3).to(torch.int32)
    y.clamp_(min=0)
    return x * y.float()


def mapped_over_two_axes(x):
    places = torch.arange(len(x))
    near = torch.vmap(lambda i: torch.vmap(lambda j: (i >= j) & (i < j + 2))(places))(places)
    return near.float() @ x


def answered_while_recording(x):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return wide * x[:, :1].expand_as(wide)


def turned(x):
    y = x.T @ (x * 2).mT + x[:3].swapaxes(0, 1).ravel()[:4].broadcast_to((2, 4)).sum(0)
    return y[None].T


def updated_result_of_several(x):
    values, places = x.topk(2)
    values /= values.sum(-1, keepdim=True)
    return values * places


def updated_result_shown_twice(x):
    result = (x * 2).topk(2)
    again = result.values.view(-1)
    result[0].mul_(3)
    return again


WITHOUT_A_TRACE = [
    *(updated_copy, updated_before_a_view, updated_in_a_block, blocks_in_blocks, pieces),
    *(uneven_pieces, mixed_precision_without_gradient, answered_while_recording, turned),
    updated_result_of_several,
]
TRACED = [
    *(updated_view, updated_through_no_copy, updated_after_a_view),
    *(updated_through_a_cast_to_the_same, rounded_update, mapped_over_two_axes),
    updated_result_shown_twice,
]


@pytest.fixture
def traces(monkeypatch):
    """Return a list that grows by one with every program that is traced again."""
    run, seen = ExportedProgram.run_decompositions, []
    monkeypatch.setattr(
        ExportedProgram,
        "run_decompositions",
        lambda program, table=None: seen.append(program) or run(program, table),
    )
    return seen


@pytest.mark.parametrize("function", WITHOUT_A_TRACE)
def test_updates_of_a_tensor_of_its_own_need_no_trace(agree, traces, function):
    agree({"f": (function, (4, 4))})
    assert not traces


@pytest.mark.parametrize("function", TRACED)
def test_updates_that_something_else_may_show_are_traced(agree, function):
    agree({"f": (function, (4, 4))})


@pytest.mark.parametrize(
    "function", [no_gradient_in_mixed_precision, switched_off_in_mixed_precision]
)
def test_gradients_switched_off_inside_autocast_are_refused_with_the_line(agree, function):
    with pytest.raises(UnsupportedError, match=r"inside torch.autocast.*test_pure.py:\d+: with"):
        agree({"f": (function, (4, 4))})


VIEWED = {
    "all": lambda x: x.flatten() * 2,
    "first, of which one is known": lambda x: x.flatten(0, 1) * 2,
    "last": lambda x: (x * 2).flatten(-2),
    "apart": lambda x: x.unflatten(1, (1, -1)) * 2,
}


@pytest.mark.parametrize("name", VIEWED)
def test_axes_of_which_several_vary_are_joined_and_divided_without_a_trace(traces, name):
    class Viewed(torch.nn.Module):
        def forward(self, x):
            return VIEWED[name](x)

    captured = capture(Viewed(), inputs={"x": torch.rand(3, 2, 5)}, dynamic={"x": {0: "a", 2: "b"}})
    assert not traces
    for shape in ((3, 2, 5), (1, 2, 4), (7, 2, 1)):
        x = torch.rand(shape)
        assert np.array_equal(np.array(captured(x=mx.array(x.numpy()))), VIEWED[name](x).numpy())
