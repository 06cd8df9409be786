"""Whole numbers among the inputs may decide what is computed: the example's are held, others refused."""

from __future__ import annotations

import mlx.core as mx
import pytest
import torch

from weighbridge.converters.captures import capture
from weighbridge.converters.common.arrays import to_mlx, to_torch
from weighbridge.errors import MismatchError, UnsupportedError


class Parts(torch.nn.Module):
    """Looks at parts of a sequence one by one, as towers of vision models do at pictures."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x, lengths):
        parts = [self.linear(part).cumsum(0) for part in x.split(lengths.tolist())]
        hidden = torch.arange(int(lengths.max())) < lengths[:, None]
        return torch.cat(parts) * hidden.sum(), lengths


class Chosen(torch.nn.Module):
    """Repeats by the largest number that it makes itself."""

    def forward(self, x):
        places = torch.arange(3).reshape(1, 3)
        return x.repeat(int(places.max()), 1) + places.sum()


class Filled(torch.nn.Module):
    """Writes what it computes among numbers that it knows, which decide before and do not after."""

    def forward(self, x):
        places = torch.full((4,), -1, dtype=torch.long)
        length = int(places.sum()) + 7
        places[1] = (x > 0).sum()
        places[2:] += 3
        return x[:length] * places.sum() + x.new_zeros(3, dtype=torch.long).add(1).sum()


class ViewFilled(torch.nn.Module):
    def forward(self, x, lengths):
        places = torch.zeros(4, dtype=torch.long)
        view = places[1:]
        view[0] = (x > 0).sum()
        return x[: int(lengths.max())] * places.sum()


class Sentences(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(4, 2)

    def forward(self, ids):
        return self.embedding(ids)[: ids.max().item()]


LENGTHS, OTHERS = torch.tensor([2, 4]), torch.tensor([3, 3])


@pytest.fixture(scope="module")
def parts():
    torch.manual_seed(0)
    module, x = Parts(), torch.randn(6, 4)
    return module, x, capture(module, inputs={"x": x, "lengths": LENGTHS})


def test_a_module_that_loops_over_lengths_computes_and_learns_as_torch_does(parts):
    module, x, captured = parts
    expected, _ = module(x, LENGTHS)
    found, lengths = captured(to_mlx(x), to_mlx(LENGTHS))
    torch.testing.assert_close(to_torch(found), expected.detach())
    assert torch.equal(to_torch(lengths), LENGTHS)
    given = x.clone().requires_grad_()
    module(given, LENGTHS)[0].sum().backward()
    gradient = mx.grad(lambda x: captured(x, to_mlx(LENGTHS))[0].sum())(to_mlx(x))
    torch.testing.assert_close(to_torch(gradient), given.grad)


def test_other_lengths_are_refused_by_name(parts):
    _, x, captured = parts
    with pytest.raises(MismatchError, match="lengths: holds other values"):
        captured(to_mlx(x), to_mlx(OTHERS))


@pytest.mark.compiled
def test_other_lengths_give_nan_in_a_compiled_function(parts):
    module, x, captured = parts
    compiled = mx.compile(lambda x, lengths: captured(x, lengths)[0])
    found = compiled(to_mlx(x), to_mlx(LENGTHS))
    torch.testing.assert_close(to_torch(found), module(x, LENGTHS)[0].detach())
    assert mx.isnan(compiled(to_mlx(x), to_mlx(OTHERS))).all()


def test_numbers_that_a_module_makes_itself_may_decide():
    x = torch.randn(2, 3)
    captured = capture(Chosen(), inputs={"x": x})
    assert torch.equal(to_torch(captured(to_mlx(x))), Chosen()(x))


def test_numbers_that_become_unknown_follow_the_input():
    x = torch.randn(5)
    captured = capture(Filled(), inputs={"x": x})
    for given in (x, -x, x.abs()):
        own = given.clone().requires_grad_()
        Filled()(own).square().sum().backward()
        assert torch.equal(to_torch(captured(to_mlx(given))), Filled()(given))
        gradient = mx.grad(lambda x: captured(x).square().sum())(to_mlx(given))
        torch.testing.assert_close(to_torch(gradient), own.grad)


def test_known_numbers_that_are_written_through_a_view_are_refused():
    with pytest.raises(UnsupportedError):
        capture(ViewFilled(), inputs={"x": torch.randn(5), "lengths": LENGTHS})


def test_ids_of_tokens_are_never_held():
    with pytest.raises(UnsupportedError):
        capture(Sentences(), inputs={"ids": torch.tensor([[1, 2]])})


class LoopedExperts(torch.nn.Module):
    """Experts as DBRX's and LongCat-Flash's: a loop over those that got a token."""

    def __init__(self):
        super().__init__()
        self.num_experts = 3
        self.weights = torch.nn.Parameter(torch.randn(3, 4, 4))

    def forward(self, hidden_states, top_k_index, top_k_weights):
        total = torch.zeros_like(hidden_states)
        mask = torch.nn.functional.one_hot(top_k_index, self.num_experts).permute(2, 1, 0)
        for expert in torch.greater(mask.sum((-1, -2)), 0).nonzero():
            place, token = torch.where(mask[expert[0]])
            states = torch.tanh(hidden_states[token] @ self.weights[expert[0]])
            total.index_add_(0, token, states * top_k_weights[token, place, None])
        return total


class Routed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.router = torch.nn.Linear(4, 3)
        self.experts = LoopedExperts()

    def forward(self, x):
        weights, index = torch.topk(self.router(x).softmax(-1), 2)
        return self.experts(x, index, weights)


def test_experts_that_are_looped_over_go_where_other_tokens_send_them():
    torch.manual_seed(0)
    module, x = Routed(), torch.randn(5, 4)
    captured = capture(module, inputs={"x": x})
    for given in (x, -x):
        own = given.clone().requires_grad_()
        expected = module(own)
        expected.square().sum().backward()
        torch.testing.assert_close(to_torch(captured(to_mlx(given))), expected.detach())
        gradient = mx.grad(lambda x: captured(x).square().sum())(to_mlx(given))
        torch.testing.assert_close(to_torch(gradient), own.grad)


def test_loops_over_experts_are_recorded_at_once_when_torch_cannot(monkeypatch):
    """Each attempt costs as long as a recording, and that of one loop over experts is long."""
    own, attempts = torch.export.export, []
    monkeypatch.setattr(
        torch.export,
        "export",
        lambda *args, **kwargs: (attempts.append(1), own(*args, **kwargs))[1],
    )
    assert capture(Routed(), inputs={"x": torch.randn(5, 4)})
    assert len(attempts) == 2


class NamedExperts(torch.nn.ModuleDict):
    """Experts as Switch Transformers': chosen by one number for each, in a row of its own."""

    def __init__(self):
        super().__init__({f"expert_{one}": torch.nn.Linear(4, 4) for one in range(3)})
        self.num_experts = 3

    def forward(self, hidden_states, selected_experts, routing_weights):
        total = torch.zeros_like(hidden_states)
        mask = selected_experts.permute(2, 1, 0)
        for expert in torch.greater(mask.sum((-1, -2)), 0).nonzero():
            place, token = torch.where(mask[expert].squeeze(0))
            states = self[f"expert_{expert[0]}"](hidden_states[None, token].reshape(-1, 4))
            total.index_add_(0, token, states * routing_weights[token, place, None])
        return total


class Switched(Routed):
    def __init__(self):
        super().__init__()
        self.experts = NamedExperts()

    def forward(self, x):
        weights, index = self.router(x).softmax(-1).max(-1, keepdim=True)
        return self.experts(x, torch.nn.functional.one_hot(index, 3), weights)


@pytest.mark.parametrize("kind", [Routed, Switched])
def test_experts_that_are_looped_over_get_every_token_of_batches_of_other_sizes(kind):
    torch.manual_seed(0)
    module = kind()
    captured = capture(module, inputs={"x": torch.randn(2, 4)}, dynamic={"x": {0: "tokens"}})
    for tokens in (2, 7, 1):
        x = torch.randn(tokens, 4)
        torch.testing.assert_close(to_torch(captured(to_mlx(x))), module(x).detach())


def test_experts_that_take_sorted_tokens_go_where_other_tokens_send_them():
    from transformers import JetMoeConfig
    from transformers.models.jetmoe.modeling_jetmoe import JetMoeMoE

    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 6, "num_local_experts": 5}
    module, x = JetMoeMoE(JetMoeConfig(**sizes)), torch.randn(2, 7, 8)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    captured = capture(module, inputs={"layer_input": x})
    for given in (x, -x, x[:, :1].expand(2, 7, 8)):  # in the last, some experts get nothing
        own = given.clone().requires_grad_()
        module(own).square().sum().backward()
        with torch.no_grad():
            torch.testing.assert_close(to_torch(captured(to_mlx(given))), module(given))
        gradient = mx.grad(lambda x: captured(x).square().sum())(to_mlx(given))
        torch.testing.assert_close(to_torch(gradient), own.grad, rtol=1e-5, atol=1e-5)
