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
    assert captured.adapter_updates() == {name: update}


def test_dora_computes_what_peft_computes(assert_same):
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=["0"], use_dora=True)
    module = nn.Sequential(nn.Linear(5, 4))
    captured = capture(module, inputs={"input": torch.randn(2, 5)})
    theirs = LoraModel(module, config, "default")
    layer = theirs.model[0]
    with torch.no_grad():
        layer.lora_B["default"].weight.normal_()
        layer.lora_magnitude_vector["default"].weight.mul_(1.5)
    a, b, magnitude = (
        part["default"].weight.detach().numpy()
        for part in (layer.lora_A, layer.lora_B, layer.lora_magnitude_vector)
    )
    captured.set_adapters({"0.weight": LowRank(a, b, ALPHA / RANK, magnitude)})
    x = torch.randn(2, 5)
    assert_same(captured(input=to_mlx(x)), theirs.model(x), 2e-6)
    assert not tree_flatten(captured.trainable_parameters())
