"""Scans over time: states that decay, as in Mamba."""

import importlib

import mlx.core as mx
import pytest
import torch

from weighbridge.converters.captures import capture
from weighbridge.converters.captures.torch_to_mlx.dtypes import to_mlx
from weighbridge.converters.captures.torch_to_mlx.operations.registry import handlers


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_a_linear_recurrence_and_its_gradients(assert_same, dim):
    decay, added, weight = torch.rand(3, 3, 4, 5, 2).unbind(0)
    leaves = [tensor.clone().requires_grad_() for tensor in (decay, added)]
    state, states = 0, []
    for factor, term in zip(*(leaf.unbind(dim) for leaf in leaves), strict=True):
        state = factor * state + term
        states.append(state)
    expected = torch.stack(states, dim)
    gradients = torch.autograd.grad((expected * weight).sum(), leaves)
    run = handlers()["weighbridge.linear_scan.default"].function
    arrays = [to_mlx(decay), to_mlx(added)]
    assert_same(run(*arrays, dim), expected, 1e-6)
    loss = mx.grad(lambda *given: (run(*given, dim) * to_mlx(weight)).sum(), argnums=(0, 1))
    for ours, theirs in zip(loss(*arrays), gradients, strict=True):
        assert_same(ours, theirs, 2e-6)


@pytest.mark.heavy
def test_mamba_runs_and_learns_at_other_lengths(assert_same, gradients_of):
    from transformers import MambaConfig, MambaModel

    config = MambaConfig(vocab_size=50, hidden_size=16, state_size=4, num_hidden_layers=2)
    module, ids = MambaModel(config).train(), torch.randint(0, 50, (2, 5))
    given = {"input_ids": ids, "use_cache": False}
    captured = capture(module, inputs=given, dynamic={"input_ids": {0: "batch", 1: "time"}})
    for shape in ((2, 5), (3, 12)):
        ids = torch.randint(0, 50, shape)
        module.zero_grad()
        expected = module(input_ids=ids, use_cache=False)[0]
        expected.square().sum().backward()
        found = captured(input_ids=to_mlx(ids))["last_hidden_state"]
        assert_same(found, expected, 1e-5)
        _, gradients = gradients_of(
            captured, lambda y: y["last_hidden_state"].square().sum(), input_ids=to_mlx(ids)
        )
        largest = max(p.grad.abs().max() for p in module.parameters())
        for name, parameter in module.named_parameters():
            difference = mx.abs(gradients[name] - to_mlx(parameter.grad)).max()
            assert difference <= 1e-5 * largest


class Rule(torch.nn.Module):
    """A delta rule as a class of transformers computes it."""

    def __init__(self, place, name):
        super().__init__()
        self.place, self.name = importlib.import_module(place), name

    def forward(self, query, key, value, decay, beta):
        rule = getattr(self.place, self.name)
        return rule(query, key, value, g=decay, beta=beta, use_qk_l2norm_in_kernel=True)[0]


@pytest.mark.parametrize(
    ("place", "name", "heads", "features"),
    [
        ("qwen3_next", "torch_chunk_gated_delta_rule", 2, ()),
        ("kimi_linear", "chunk_kimi_delta_attention", 4, (5,)),
    ],
)
def test_delta_rules_at_other_lengths(place, name, heads, features, assert_same):
    module = Rule(f"transformers.models.{place}.modeling_{place}", name)

    def drawn(batch, time):
        start = (batch, time)
        return {
            "query": torch.randn(*start, heads, 5),
            "key": torch.randn(*start, heads, 5),
            "value": torch.randn(*start, 4, 3),
            "decay": -torch.rand(*start, 4, *features),
            "beta": torch.rand(*start, 4),
        }

    axes = {name: {0: "batch", 1: "time"} for name in drawn(1, 1)}
    captured = capture(module, inputs=drawn(2, 6), dynamic=axes)
    for shape in ((2, 6), (1, 1), (1, 65), (3, 130)):
        given = {key: x.requires_grad_() for key, x in drawn(*shape).items()}
        expected = module(**given)
        weight = torch.randn(expected.shape)
        gradients = torch.autograd.grad((expected * weight).sum(), list(given.values()))
        arrays = [to_mlx(x.detach()) for x in given.values()]

        def loss(*arrays, weight=weight, names=tuple(given)):
            return (captured(**dict(zip(names, arrays, strict=True))) * to_mlx(weight)).sum()

        assert_same(captured(**dict(zip(given, arrays, strict=True))), expected, 1e-5)
        for ours, theirs in zip(mx.grad(loss, [*range(5)])(*arrays), gradients, strict=True):
            assert_same(ours, theirs, 2e-5)
