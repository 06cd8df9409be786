"""What torch.export cannot record as it stands is recorded as what it means."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
from torch import nn

from weighbridge.converters.captures import capture
from weighbridge.converters.captures.torch_to_mlx.dtypes import to_mlx
from weighbridge.errors import UnsupportedError


def test_a_batch_norm_keeps_the_plain_average_over_batches(assert_same):
    norm = nn.BatchNorm1d(3, momentum=None).train()
    batches = [torch.randn(4, 3, 5) for _ in range(3)]
    norm(batches[0])
    captured, theirs = capture(norm, inputs={"input": batches[1]}), copy.deepcopy(norm)
    for batch in batches[1:]:
        assert_same(captured(input=to_mlx(batch)), theirs(batch), rtol=1e-5)
    kept = captured.torch_state_dict()
    for name, tensor in theirs.state_dict().items():
        torch.testing.assert_close(torch.as_tensor(kept[name]), tensor, rtol=1e-5, atol=1e-6)


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, x):
        return self.encoder(x, mask=nn.Transformer.generate_square_subsequent_mask(x.shape[1]))


def test_a_transformer_takes_a_mask_that_it_makes(agree):
    module = Masked()
    agree({"causal": (module, (2, 5, 8))}, rtol=1e-5)


@pytest.mark.heavy
def test_one_mask_may_go_to_layers_of_several_lengths(assert_same):
    from transformers import InformerConfig, InformerModel

    sizes = {"d_model": 16, "encoder_ffn_dim": 20, "decoder_ffn_dim": 20}
    config = InformerConfig(
        prediction_length=6, context_length=12, lags_sequence=[1], num_time_features=1, **sizes
    )
    past = {"past_values": torch.randn(2, 13), "past_observed_mask": torch.ones(2, 13)}
    past["past_time_features"] = torch.randn(2, 13, 1)
    module = InformerModel(config).eval()
    captured = capture(module, inputs=past)
    found = captured(**{name: to_mlx(value) for name, value in past.items()})
    expected = module(**past).encoder_last_hidden_state
    assert_same(found["encoder_last_hidden_state"], expected, rtol=1e-5)


def test_a_gaussian_loss_asks_nothing_of_its_variances(agree):
    like = torch.rand(3, 4) + 0.1
    like[0, 1], like[2, 3] = 0.01, 0.03  # below the bound, which has no gradient of its own

    def loss(x, target, variance):
        return nn.functional.gaussian_nll_loss(x, target, variance, eps=0.05)

    agree({"loss": (loss, (3, 4), (3, 4), like)}, rtol=1e-5)


class Router(nn.Module):
    """Casts its layer to the dtype of its input, as routers of experts do."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        self.layer = self.layer.to(x.dtype)
        return self.layer(x)


def test_a_layer_may_be_cast_to_the_dtype_that_it_has(assert_same):
    module, x = Router(), torch.randn(2, 4)
    assert_same(capture(module, inputs={"x": x})(x=to_mlx(x)), module(x), rtol=1e-5)


class Bounded(nn.Linear):
    def forward(self, x):
        self.weight.data = self.weight.data.clamp(min=0.1)
        return super().forward(x)


def test_values_that_replace_those_of_a_weight_are_not_lost_but_refused():
    with pytest.raises(UnsupportedError, match=r"other values by \.data ="):
        capture(Bounded(4, 3), inputs={"x": torch.randn(2, 4)})


def test_an_instance_norm_keeps_its_statistics(assert_same):
    norm = nn.InstanceNorm1d(3, momentum=0.3, affine=True, track_running_stats=True).train()
    example = {"input": torch.randn(4, 3, 5)}
    captured, theirs = capture(norm, inputs=example, dynamic={"input": {0: "n"}}), norm
    for rows in (4, 2):
        batch = 2 * torch.randn(rows, 3, 5) + 1
        assert_same(captured(input=to_mlx(batch)), theirs(batch), rtol=1e-5)
    kept = captured.torch_state_dict()
    for name, tensor in theirs.state_dict().items():
        torch.testing.assert_close(torch.as_tensor(kept[name]), tensor, rtol=1e-5, atol=1e-6)
    batch = torch.randn(4, 3, 5)
    assert_same(captured.eval()(input=to_mlx(batch)), theirs.eval()(batch), rtol=1e-5)


class Cached(nn.Module):
    """Gives its cache of keys and values unasked, as models that read it themselves do."""

    def __init__(self):
        from transformers.cache_utils import DynamicCache
        from transformers.modeling_outputs import BaseModelOutputWithPast

        super().__init__()
        self.cache, self.output = DynamicCache, BaseModelOutputWithPast

    def forward(self, x, past_key_values=None):
        cache = past_key_values or self.cache()
        keys, values = cache.update(x, x.square(), 0)
        return self.output(last_hidden_state=keys * values, past_key_values=cache)


def test_a_forward_that_says_its_own_signature_is_recorded(assert_same):
    class Said(torch.nn.Module):
        def forward(self, *given, **named):
            return (given or tuple(named.values()))[0] * 2

    inner = [inspect.Parameter(it, inspect.Parameter.POSITIONAL_OR_KEYWORD) for it in ("self", "x")]
    Said.forward.__signature__ = inspect.Signature(inner)
    module, x = Said(), torch.randn(2, 3)
    assert_same(capture(module, inputs={"x": x})(x=to_mlx(x)), module(x), rtol=1e-6)


def test_a_cache_that_nobody_asked_for_is_left_out(assert_same):
    module, x = Cached(), torch.randn(1, 2, 3, 4)
    found = capture(module, inputs={"x": x})(x=to_mlx(x))
    assert list(found) == ["last_hidden_state"]
    assert_same(found["last_hidden_state"], module(x).last_hidden_state, rtol=1e-6)
    with pytest.raises(UnsupportedError):
        capture(module, inputs={"x": x, "past_key_values": module.cache()})
