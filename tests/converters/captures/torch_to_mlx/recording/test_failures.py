"""What cannot be recorded is refused with the model's line and a cure, or cured without being asked."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Distribution, Normal
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from tests.support.gain import realistic
from weighbridge.converters.captures import capture
from weighbridge.converters.captures.torch_to_mlx.dtypes import to_mlx, to_torch
from weighbridge.errors import UnsupportedError

SIZES = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 24}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Counting(nn.Module):
    def forward(self, x):
        return torch.zeros(int(x.sum().item()))


CASES = [
    (Branching(), {"x": torch.ones(3)}, "return x if x.sum() > 0 else -x", "torch.where"),
    (Counting(), {"x": torch.ones(3)}, "int(x.sum().item())", "torch.where"),
    (Branching(), {"y": torch.ones(3)}, "", "the arguments of forward"),
]


@pytest.mark.parametrize(("module", "inputs", "line", "cure"), CASES, ids=range(len(CASES)))
def test_a_failed_export_says_the_line_and_the_cure_in_a_few_lines(
    module, inputs, line, cure, capfd
):
    with pytest.raises(UnsupportedError) as caught:
        capture(module, inputs=inputs)
    assert capfd.readouterr() == ("", "")  # no graph
    message = str(caught.value)
    assert f"torch.export cannot record {type(module).__name__}: " in message
    assert line in message
    assert not line or "test_failures.py:" in message
    assert cure in message
    assert len(message.splitlines()) <= 4
    assert len(message) < 900


class Likely(nn.Module):
    def forward(self, x, mean):
        return Normal(mean, 1.0).log_prob(x)


def test_checks_of_distributions_are_off_while_recording_and_on_again_after(monkeypatch):
    monkeypatch.setattr(Distribution, "_validate_args", True)  # torch.compile ends them
    x, mean = torch.randn(3), torch.randn(3)
    captured = capture(Likely(), inputs={"x": x, "mean": mean})
    found = to_torch(captured(x=to_mlx(x), mean=to_mlx(mean)))
    torch.testing.assert_close(found, Likely()(x, mean))
    assert Distribution._validate_args


MODELS = [
    lambda: LlamaForCausalLM(LlamaConfig(**SIZES, **HEADS)),
    lambda: MixtralForCausalLM(
        MixtralConfig(**SIZES, **HEADS, num_local_experts=3, num_experts_per_tok=2)
    ),
]


@pytest.mark.heavy
@pytest.mark.parametrize("make", MODELS, ids=["llama", "mixtral"])
def test_decoders_and_mixtures_of_experts_are_recorded_at_their_default_settings(
    make, gradients_of
):
    module = realistic(make())
    before = module.config._experts_implementation
    axes = {"input_ids": {0: "batch", 1: "sequence"}}
    ids = torch.randint(30, (2, 5))
    captured = capture(module, inputs={"input_ids": ids}, dynamic=axes)
    assert module.config.use_cache
    assert module.config._experts_implementation == before
    ids = torch.randint(30, (3, 4))
    expected = module(input_ids=ids, use_cache=False).logits
    weights = torch.randn_like(expected)
    (expected * weights).sum().backward()
    _, found = gradients_of(
        captured, lambda out: (out["logits"] * to_mlx(weights)).sum(), input_ids=to_mlx(ids)
    )
    logits = to_torch(captured(input_ids=to_mlx(ids))["logits"])
    torch.testing.assert_close(logits, expected.detach(), rtol=1e-5, atol=1e-5)
    scale = max(float(p.grad.abs().max()) for p in module.parameters())
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(found[name], parameter.grad, atol=1e-5 * scale, err_msg=name)
