"""Adapters in a captured graph against PEFT."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import torch
from mlx.utils import tree_flatten
from peft import LoraConfig, LoraModel
from torch import nn
from transformers import BertConfig, BertModel

from weighbridge.converters.captures import AdapterSpec, capture
from weighbridge.converters.captures.torch_to_mlx.dtypes import to_mlx, to_torch
from weighbridge.converters.values import LowRank
from weighbridge.errors import MismatchError

TARGETS = ["query", "dense", "word_embeddings"]
RANK, ALPHA = 3, 6.0


def bert():
    sizes = {"hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 36}
    return BertModel(
        BertConfig(vocab_size=50, num_hidden_layers=1, max_position_embeddings=40, **sizes)
    )


def inputs():
    return {
        "input_ids": torch.randint(0, 50, (2, 7)),
        "attention_mask": torch.ones(2, 7, dtype=torch.int64),
    }


def adapted(targets):
    """Return a PEFT model with factors that matter, and its factors as updates."""
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=targets)
    model = LoraModel(bert().eval(), config, "default")
    updates = {}
    for name, module in model.model.named_modules():
        down = getattr(module, "lora_A", {})
        if "default" in down:
            a, b = module.lora_A["default"].weight, module.lora_B["default"].weight
        elif "default" in getattr(module, "lora_embedding_A", {}):
            a, b = module.lora_embedding_A["default"], module.lora_embedding_B["default"]
        else:
            continue
        with torch.no_grad():
            a.normal_(0, 0.3)
            b.normal_(0, 0.3)
        updates[f"{name}.weight"] = (a, b)
    return model, updates


def low_rank(name, a, b):
    """Return PEFT's factors as an update laid out as its weight; an embedding's lies turned."""
    update = LowRank(a.detach().numpy(), b.detach().numpy(), ALPHA / RANK)
    return update.transposed() if "embeddings" in name else update


@pytest.fixture
def pair():
    torch.manual_seed(0)
    model, factors = adapted(TARGETS)
    base = bert().eval()
    state = {
        name.replace(".base_layer", ""): tensor
        for name, tensor in model.model.state_dict().items()
        if "lora_" not in name
    }
    base.load_state_dict(state)
    captured = capture(base, inputs=inputs())
    captured.set_adapters({name: low_rank(name, a, b) for name, (a, b) in factors.items()})
    return model, factors, captured


def test_the_forward_pass_is_that_of_peft(pair, assert_same):
    model, _, captured = pair
    batch = inputs()
    found = captured(**{name: to_mlx(tensor) for name, tensor in batch.items()})
    assert_same(found["last_hidden_state"], model.model(**batch).last_hidden_state, 1e-6)


def test_gradients_are_those_of_peft_and_only_adapters_have_any(pair, gradients_of):
    model, factors, captured = pair
    batch = inputs()
    weights = torch.randn(2, 7, 24)
    (model.model(**batch).last_hidden_state * weights).sum().backward()
    _, found = gradients_of(
        captured,
        lambda out: (out["last_hidden_state"] * to_mlx(weights)).sum(),
        **{name: to_mlx(tensor) for name, tensor in batch.items()},
    )
    expected = {}
    for name, (a, b) in factors.items():
        if a.grad is not None:  # the pooler's output is not in the loss
            expected[name.removesuffix("weight") + "lora_a"] = a.grad.T
            expected[name.removesuffix("weight") + "lora_b"] = b.grad.T
    assert len(expected) == 2 * (len(factors) - 1)
    assert set(found) >= set(expected)
    assert all(name.endswith(("lora_a", "lora_b")) for name in found)
    scale = max(float(gradient.abs().max()) for gradient in expected.values())
    for name, gradient in expected.items():
        np.testing.assert_allclose(to_torch(found[name]), gradient, atol=3e-6 * scale, err_msg=name)


def test_a_new_adapter_changes_nothing_and_has_mlx_lm_names_and_shapes():
    captured = capture(bert().eval(), inputs=inputs())
    batch = {name: to_mlx(tensor) for name, tensor in inputs().items()}
    before = np.array(captured(**batch)["last_hidden_state"])
    name = "encoder.layer.0.intermediate.dense"
    captured.insert_adapters({f"{name}.weight": AdapterSpec(RANK, 2.0)}, seed=1)
    np.testing.assert_array_equal(before, np.array(captured(**batch)["last_hidden_state"]))
    trainable = dict(tree_flatten(captured.trainable_parameters()))
    assert {key: array.shape for key, array in trainable.items()} == {
        f"{name}.lora_a": (24, RANK),
        f"{name}.lora_b": (RANK, 36),
    }
    assert 0 < float(mx.abs(trainable[f"{name}.lora_a"]).max()) <= 1 / np.sqrt(24)


def test_updates_come_back_as_they_went_in(pair):
    _, factors, captured = pair
    found = captured.adapter_updates()
    assert found.keys() == factors.keys()
    for name, (a, b) in factors.items():
        wanted = low_rank(name, a, b)
        np.testing.assert_array_equal(found[name].a, wanted.a)
        np.testing.assert_array_equal(found[name].b, wanted.b)
        assert found[name].scale == ALPHA / RANK


def test_the_state_dict_holds_the_base_alone(pair):
    _, _, captured = pair
    bert().load_state_dict(captured.torch_state_dict(), strict=True)


def test_a_convolution_computes_with_its_merged_weight(assert_same):
    module = nn.Conv1d(4, 6, 3, groups=2, padding=1)
    a, b = torch.randn(2, 6).numpy(), torch.randn(6, 2).numpy()
    captured = capture(module, inputs={"input": torch.randn(2, 4, 9)})
    captured.set_adapters({"weight": LowRank(a, b, 0.5)})
    x = torch.randn(2, 4, 9)
    with torch.no_grad():
        module.weight += 0.5 * torch.from_numpy(b @ a).reshape(module.weight.shape)
    assert_same(captured(input=to_mlx(x)), module(x), 2e-6)
    assert set(dict(tree_flatten(captured.trainable_parameters()))) == {"lora_a", "lora_b"}


def test_adapters_inserted_later_join_those_that_are_there():
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    captured = capture(module, inputs={"input": torch.randn(2, 3)})
    captured.insert_adapters({"0.weight": AdapterSpec(2)})
    captured.insert_adapters({"1.weight": AdapterSpec(1)})
    names = dict(tree_flatten(captured.trainable_parameters()))
    assert set(names) == {"0.lora_a", "0.lora_b", "1.lora_a", "1.lora_b"}


def test_unknown_weights_are_listed_with_the_nearest_name():
    captured = capture(bert().eval(), inputs=inputs())
    wrong = {"encoder.layer.0.attention.self.qeury.weight", "pooler.dense.bias"}
    with pytest.raises(MismatchError, match=r"2 problems(.|\n)*did you mean .*self\.query\.weight"):
        captured.insert_adapters(dict.fromkeys(wrong, AdapterSpec(2)))
    assert dict(tree_flatten(captured.trainable_parameters()))


def test_an_update_of_the_wrong_shape_is_refused():
    captured = capture(nn.Linear(3, 4), inputs={"input": torch.randn(2, 3)})
    with pytest.raises(MismatchError, match=r"weight: expected .*\[4, 3\], found \[4, 5\]"):
        captured.set_adapters({"weight": LowRank(np.ones((2, 5)), np.ones((4, 2)))})


def test_what_is_no_linear_layer_computes_with_the_sum(assert_same):
    from transformers import GPT2Config, GPT2Model

    sizes = {"n_embd": 24, "n_head": 3, "n_layer": 1, "vocab_size": 50, "n_positions": 20}
    module = GPT2Model(GPT2Config(**sizes, use_cache=False)).eval()
    batch = {"input_ids": torch.randint(0, 50, (2, 7))}
    captured = capture(module, inputs=batch)
    name = "h.0.attn.c_attn.weight"  # [in, out]
    update = LowRank(torch.randn(2, 72).numpy(), torch.randn(24, 2).numpy(), 0.3)
    captured.set_adapters({name: update})
    with torch.no_grad():
        module.get_parameter(name).add_(torch.from_numpy(update.delta()).float())
        wanted = module(**batch).last_hidden_state
    found = captured(input_ids=to_mlx(batch["input_ids"]))["last_hidden_state"]
    assert_same(found, wanted, 2e-6)
    [(back, again)] = captured.adapter_updates().items()
    assert back == name
    np.testing.assert_array_equal(again.delta(), update.delta())
    assert set(dict(tree_flatten(captured.trainable_parameters()))) == {
        "h.0.attn.c_attn.lora_a",
        "h.0.attn.c_attn.lora_b",
    }


def dora(module, targets):
    """Return a PEFT model with DoRA whose factors and magnitudes matter, and them as updates."""
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=targets, use_dora=True)
    theirs = LoraModel(module, config, "default")
    updates = {}
    for name, layer in theirs.model.named_modules():
        if "default" not in getattr(layer, "lora_magnitude_vector", {}):
            continue
        parts = (layer.lora_A, layer.lora_B, layer.lora_magnitude_vector)
        a, b, magnitude = (part["default"].weight for part in parts)
        with torch.no_grad():
            b.normal_(0, 0.3)
            magnitude.mul_(1.5)
        flat = [array.detach().numpy().copy() for array in (a, b, magnitude)]
        a_flat, b_flat = flat[0].reshape(RANK, -1), flat[1].reshape(-1, RANK)
        update = LowRank(a_flat, b_flat, ALPHA / RANK, flat[2].reshape(-1))
        updates[f"{name}.weight"] = (update, (a, b, magnitude))
    return theirs, updates


@pytest.mark.parametrize(
    ("module", "x"),
    [
        (nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3, bias=False)), (2, 5)),
        (nn.Sequential(nn.Conv1d(5, 4, 3), nn.Tanh(), nn.Conv1d(4, 3, 2)), (2, 5, 8)),
    ],
    ids=["linear", "convolution"],
)
def test_dora_is_trained_as_peft_trains_it(module, x, assert_same, gradients_of):
    x = torch.randn(x)
    captured = capture(module, inputs={"input": x})
    theirs, updates = dora(module, ["0", "2"])
    captured.set_adapters({name: update for name, (update, _) in updates.items()})
    expected = theirs.model(x)
    assert_same(captured(input=to_mlx(x)), expected, 2e-6)
    weights = torch.randn_like(expected)
    (expected * weights).sum().backward()
    _, found = gradients_of(captured, lambda out: (out * to_mlx(weights)).sum(), input=to_mlx(x))
    assert len(found) == 3 * len(updates)
    for name, (_, (a, b, magnitude)) in updates.items():
        stem = name.removesuffix("weight")
        assert_same(found[f"{stem}lora_a"], a.grad.reshape(RANK, -1).T, 1e-5)
        assert_same(found[f"{stem}lora_b"], b.grad.reshape(-1, RANK).T, 1e-5)
        assert_same(found[f"{stem}lora_m"], magnitude.grad.reshape(-1), 1e-5)


def test_a_new_dora_adapter_changes_nothing_and_is_trained():
    captured = capture(nn.Sequential(nn.Linear(5, 4)), inputs={"input": torch.randn(2, 5)})
    x = mx.random.normal((2, 5))
    before = captured(input=x)
    captured.insert_adapters({"0.weight": AdapterSpec(2, 2.0, dora=True)})
    np.testing.assert_allclose(captured(input=x), before, rtol=1e-5, atol=1e-6)
    assert set(dict(tree_flatten(captured.trainable_parameters()))) == {
        "0.lora_a",
        "0.lora_b",
        "0.lora_m",
    }


def test_dora_of_an_embedding_is_summed_by_row(assert_same):
    module = nn.Embedding(9, 4)
    ids = torch.tensor([[0, 3, 8]])
    captured = capture(module, inputs={"input": ids})
    a, b, magnitude = torch.randn(2, 4), torch.randn(9, 2), torch.rand(9) + 1
    update = LowRank(a.numpy(), b.numpy(), 0.5, magnitude.numpy())
    captured.set_adapters({"weight": update})
    expected = torch.from_numpy(update.applied_to(module.weight.detach().numpy())).float()
    assert_same(captured(input=to_mlx(ids)), expected[ids], 2e-6)
    assert set(dict(tree_flatten(captured.trainable_parameters()))) == {
        "lora_a",
        "lora_b",
        "lora_m",
    }


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(3, 8, 3)
        self.body = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.ModuleList([nn.Linear(8, 4), nn.Linear(4, 2)])

    def forward(self, x):
        x = self.norm(self.body(self.conv(x).mean(-1)))
        return self.head[1](torch.tanh(self.head[0](x)))


def test_named_modules_are_trained_beside_adapters_as_in_torch(gradients_of):
    module = Classifier().eval()
    x, weights = torch.randn(5, 3, 9), torch.randn(5, 2)
    captured = capture(module, inputs={"x": x})
    update = LowRank(torch.randn(2, 8).numpy(), torch.randn(8, 2).numpy(), 0.5)
    captured.set_adapters({"body.weight": update}, train=["conv", "head.*.bias"])
    with torch.no_grad():
        module.body.weight += torch.from_numpy(update.delta()).float()
    (module(x) * weights).sum().backward()
    _, found = gradients_of(captured, lambda out: (out * to_mlx(weights)).sum(), x=to_mlx(x))
    trained = {"conv.weight", "conv.bias", "head.0.bias", "head.1.bias"}
    assert set(found) == trained | {"body.lora_a", "body.lora_b"}
    grads = {name: parameter.grad for name, parameter in module.named_parameters()}
    scale = max(float(grads[name].abs().max()) for name in trained)
    for name in trained:
        np.testing.assert_allclose(found[name], grads[name], atol=3e-6 * scale, err_msg=name)
    captured.insert_adapters({"head.0.weight": AdapterSpec(2)})
    assert trained < set(dict(tree_flatten(captured.trainable_parameters())))


@pytest.mark.parametrize("name", ["haed", "norm.running_mean", "head.2"])
def test_what_cannot_be_trained_beside_adapters_is_refused(name):
    captured = capture(Classifier().eval(), inputs={"x": torch.randn(5, 3, 9)})
    with pytest.raises(MismatchError, match=f"'{name}' names no parameter that can be trained"):
        captured.insert_adapters({"body.weight": AdapterSpec(2)}, train=["conv", name])
    assert "body.weight" in dict(tree_flatten(captured.trainable_parameters()))


def test_factors_beside_16_bit_weights_are_float32_and_see_small_updates():
    module = nn.Linear(4, 3).bfloat16()
    captured = capture(module, inputs={"input": torch.ones(2, 4).bfloat16()})
    captured.insert_adapters({"weight": AdapterSpec(2)})
    for array in dict(tree_flatten(captured.trainable_parameters())).values():
        assert array.dtype == mx.float32
    assert captured(input=mx.ones((2, 4), mx.bfloat16)).dtype == mx.bfloat16
