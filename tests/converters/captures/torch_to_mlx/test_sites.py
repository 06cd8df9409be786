"""Sites against torch's forward hooks: same names, same values, corrections where they belong."""

from __future__ import annotations

from itertools import count

import mlx.core as mx
import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel, T5Config, T5EncoderModel

from weighbridge.converters.captures import capture
from weighbridge.converters.captures.torch_to_mlx.dtypes import to_mlx
from weighbridge.converters.captures.torch_to_mlx.sites import clean

SIZES = {"hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 36}


def bert():
    config = BertConfig(vocab_size=50, num_hidden_layers=2, max_position_embeddings=40, **SIZES)
    return BertModel(config).eval()


def t5():
    config = T5Config(vocab_size=50, d_model=24, d_kv=6, d_ff=40, num_layers=2, num_heads=3)
    return T5EncoderModel(config).eval()


MODELS = {"bert": bert, "t5": t5}


def inputs():
    return {
        "input_ids": torch.randint(0, 50, (2, 7)),
        "attention_mask": torch.tensor([[1] * 7, [0] * 3 + [1] * 4]),
    }


def first_tensor(output):
    if isinstance(output, torch.Tensor):
        return output
    values = output.values() if hasattr(output, "values") else output
    return next(value for value in map(first_tensor, values) if value is not None)


def hooked(module, batch, replace=None):
    """Run with forward hooks; return the output of every submodule, and replace one of them."""
    seen = {}

    def hook_for(name):
        calls = count()

        def hook(_, __, output):
            call = next(calls)
            seen[f"{name}@{call}" if call else name] = first_tensor(output).detach()
            return replace[name](output) if replace and name in replace else None

        return hook

    handles = [m.register_forward_hook(hook_for(n)) for n, m in module.named_modules() if n]
    with torch.no_grad():
        output = module(**batch)
    for handle in handles:
        handle.remove()
    return first_tensor(output), seen


def feed(batch):
    return {name: to_mlx(tensor) for name, tensor in batch.items()}


@pytest.mark.parametrize("name", MODELS)
def test_sites_are_the_hooks_of_torch(name, assert_same):
    module = MODELS[name]()
    batch = inputs()
    captured = capture(module, inputs=batch)
    _, expected = hooked(module, batch)
    _, found = captured.trace(feed(batch))
    assert set(found) == set(expected)
    assert set(captured.sites) == set(found)
    for site, value in expected.items():
        assert_same(found[site], value, 1e-5)


@pytest.mark.parametrize(
    "site", ["encoder.layer.0.attention.self.value", "encoder.layer.0.output", "embeddings"]
)
def test_a_correction_changes_what_follows_as_in_torch(site, assert_same):
    module = bert()
    batch = inputs()
    captured = capture(module, inputs=batch)
    plain_output, plain = hooked(module, batch)
    noisy = plain[site] + 0.1 * torch.randn_like(plain[site])
    output, expected = hooked(module, batch, {site: lambda _: noisy})
    found_output, found = captured.trace(feed(batch), {site: to_mlx(noisy)})
    assert_same(found_output["last_hidden_state"], output, 1e-5)
    assert not torch.allclose(output, plain_output, atol=1e-3)
    for name in found:
        assert_same(found[name], expected[name], 1e-5)
    assert_same(found[site], plain[site], 1e-5)


def test_with_every_output_corrected_each_site_sees_only_its_own_error(assert_same):
    module, other = bert(), bert()
    other.load_state_dict(module.state_dict())
    with torch.no_grad():
        other.encoder.layer[0].attention.self.key.weight += 0.3 * torch.randn(24, 24)
    batch = inputs()
    _, reference = hooked(module, batch)
    captured = capture(other, inputs=batch)
    _, found = captured.trace(feed(batch), {name: to_mlx(v) for name, v in reference.items()})
    wrong = {
        name
        for name, value in reference.items()
        if not np.allclose(np.array(found[name]), value.numpy(), atol=1e-4)
    }
    assert wrong == {"encoder.layer.0.attention.self.key"}


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Linear(3, 3)
        self.recurrent = nn.LSTM(3, 4, batch_first=True)

    def forward(self, x):
        return self.recurrent(self.shared(self.shared(x)))


def test_a_module_called_again_is_a_site_per_call(assert_same):
    module = Twice()
    x = torch.randn(2, 5, 3)
    captured = capture(module, inputs={"x": x})
    _, sites = captured.trace({"x": to_mlx(x)})
    assert list(sites) == ["shared", "shared@1", "recurrent"]
    assert_same(sites["shared@1"], module.shared(module.shared(x)), 1e-6)
    assert_same(sites["recurrent"], module(x)[0], 1e-6)


def test_a_correction_of_another_shape_does_nothing(assert_same):
    module = nn.Sequential(nn.Linear(3, 2))
    captured, x = capture(module, inputs={"input": torch.ones(2, 3)}), torch.ones(2, 3)
    found, _ = captured.trace({"input": to_mlx(x)}, {"0": mx.ones((3, 3))})
    assert_same(found, module(x), 1e-6)


@pytest.mark.parametrize("noise", ["L['self'].", "L__self__.", ""])
def test_paths_are_cleaned_of_the_noise_of_the_tracer(noise):
    assert clean(f"{noise}layer.slice(None, 2, None).0.query") == "layer.0.query"


class Turns(nn.Module):
    def forward(self, x):
        return x.cos(), x.sin()


class Turned(nn.Module):
    def __init__(self):
        super().__init__()
        self.turns, self.head = Turns(), nn.Linear(3, 3)

    def forward(self, x):
        cosines, sines = self.turns(x)
        return self.head(x * sines + x.flip(-1) * cosines)


def test_of_two_tensors_of_one_shape_the_first_is_the_site(assert_same):
    module, x = Turned(), torch.randn(2, 5, 3)
    _, sites = capture(module, inputs={"x": x}).trace({"x": to_mlx(x)})
    assert_same(sites["turns"], x.cos(), 1e-6)
