"""Scans over time: states that decay, as in Mamba."""

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
