"""Directories opened as captures of their torch class, quantized weights as their codes."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import torch
from mlx import nn, optimizers

import weighbridge
from weighbridge.converters.captures import AdapterSpec
from weighbridge.converters.planning.opening import open as open_model
from weighbridge.converters.planning.transcoding import quantized_view
from weighbridge.converters.runtimes.torch import build_module
from weighbridge.errors import BadInputError
from weighbridge.tests.support.quantized_bases import quantized


def codes(path):
    """Return words of codes by module, of the files of a directory."""
    stored = mx.load(str(path / "model.safetensors"))
    return {
        name.removesuffix(".scales"): np.array(stored[f"{name.removesuffix('.scales')}.weight"])
        for name in stored
        if name.endswith(".scales")
    }


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return quantized(tmp_path_factory.mktemp("mlx"))


def held(captured):
    return {
        name.removesuffix(".weight"): b.parts["weight"] for name, b in captured.blocks().items()
    }


def test_a_4_bit_directory_of_mlx_keeps_its_codes_before_and_after_training(base):
    captured = weighbridge.capture(base)
    stored = codes(base)
    assert held(captured).keys() == stored.keys()
    target = next(name for name in captured.blocks() if "q_proj" in name)
    captured.insert_adapters({target: AdapterSpec(2)}, train=["model.norm"])
    ids = mx.array(np.arange(12).reshape(2, 6))
    optimizer = optimizers.AdamW(1e-2, weight_decay=0.1)
    step = nn.value_and_grad(captured, lambda: captured(input_ids=ids)["logits"].square().mean())
    losses = []
    for _ in range(3):
        loss, gradients = step()
        optimizer.update(captured, gradients)
        losses.append(float(loss))
    assert losses[-1] < losses[0]
    for name, words in held(captured).items():
        assert words.tobytes() == stored[name].tobytes(), name


def test_it_computes_what_torch_computes_with_the_canonical_values(base):
    assert_as_torch(base, weighbridge.capture(str(base)))


def assert_as_torch(base, captured):
    """Compare CAPTURED with torch's class on the canonical values of the directory BASE."""
    module = build_module(quantized_view(open_model(str(base))))
    ids = torch.arange(12).reshape(2, 6)
    with torch.no_grad():
        expected = module(input_ids=ids).logits
    found = captured(input_ids=mx.array(ids.numpy()))["logits"]
    np.testing.assert_allclose(found, expected, atol=1e-5 * float(expected.abs().max()), rtol=0)
    module.load_state_dict(captured.torch_state_dict(), strict=True)


EXPERTS = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 64,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "rms_norm_eps": 1e-5,
    "vocab_size": 64,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "max_position_embeddings": 64,
    "norm_topk_prob": True,
}


def test_experts_are_stacked_as_the_torch_class_has_them_codes_and_all(tmp_path):
    from mlx_lm.models import qwen3_moe

    base = quantized(tmp_path, EXPERTS, qwen3_moe)
    captured = weighbridge.capture(base)
    found, stored = held(captured), codes(base)
    layer = "model.layers.0.mlp"
    parts = [stored[f"{layer}.switch_mlp.{name}_proj"] for name in ("gate", "up")]
    together = found[f"{layer}.experts.gate_up_proj"]
    assert together.tobytes() == np.concatenate(parts, axis=1).tobytes()
    down = found[f"{layer}.experts.down_proj"]
    assert down.tobytes() == stored[f"{layer}.switch_mlp.down_proj"].tobytes()
    assert len(found) == len(stored) - 1
    assert_as_torch(base, captured)


def test_a_directory_takes_no_inputs_and_a_module_needs_some(base):
    with pytest.raises(BadInputError, match="the model's signature"):
        weighbridge.capture(base, inputs={"input_ids": np.ones((1, 2), int)})
    with pytest.raises(BadInputError, match="example `inputs`"):
        weighbridge.capture(torch.nn.Linear(2, 2))
