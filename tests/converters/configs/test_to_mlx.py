"""Raw transformers-5 configs become what mlx-lm reads: the class builds and computes the same."""

from __future__ import annotations

import json

import mlx.core as mx
import numpy as np
import pytest
import torch
from mlx_lm.models.cache import make_prompt_cache

from weighbridge.converters.configs import to_mlx, to_torch
from weighbridge.converters.libraries import Target, find
from weighbridge.errors import MismatchError
from weighbridge.tests.support.atlas import tiny

ROUNDING = 2.5e-6  # relative to the largest logit, float32 on both sides
IDS = np.random.default_rng(3).integers(3, 100, size=(1, 12))
# Refused raw, or misread silently; one of each kind of key.
QUICK = [
    "qwen3_moe",
    "exaone4",
    "lfm2",
    "qwen2",
    "cohere2",
    "minicpm3",
    "qwen3_vl",
    "mimo_v2_flash",
]
# Differences above rounding that no note explains: how large they may be.
SMALL = {
    "gemma4": 5e-6,
    "gemma4_text": 1e-5,
    "gemma4_unified": 5e-6,
    "olmo_hybrid": 5e-6,  # 3.3e-6 from float64, torch itself 4.3e-6: the delta rule of qwen3_5
    "qwen3_5": 1e-5,
    "qwen3_5_moe": 5e-6,  # 3.9e-6 from float64, torch itself 0.9e-6: the delta rule of qwen3_5
    "qwen3_next": 5e-6,
}
UNBUILT = {
    "olmo": "mlx-lm's file ends the process without ai2-olmo",
    "pixtral": "transformers has no language model of the type",
    "muse_spark": "its classes run on Metal alone",
}


PACKED = {"bitnet", "deepseek_v3", "gpt_oss"}  # published quantized, which a loader unpacks


def raw(kind, folder):
    """Save a tiny KIND as published, but dense; return the torch model, the config and the class."""
    made = tiny.make(kind, folder, "saved" if kind in PACKED else tiny.layouts(kind)[-1])
    config = json.loads((folder / "config.json").read_text())
    return made.model, config, find(config, "mlx-lm")


def difference(kind, folder):
    """Return how far mlx-lm's own class is from transformers, and the translation."""
    model, config, target = raw(kind, folder)
    translation = to_mlx(config, target)
    home = to_torch(*json.loads(json.dumps([translation.config, translation.recorded()])))
    assert home.config == config
    native = target.load(translation.config, mx.load(str(folder / "model.safetensors")))
    found = native(mx.array(IDS), cache=make_prompt_cache(native))  # gemma3n shares keys by it
    logits = np.array(getattr(found, "logits", found).astype(mx.float32))
    with torch.no_grad():
        expected = model(torch.tensor(IDS), use_cache=False).logits.numpy()
    return np.abs(logits - expected).max() / np.abs(expected).max(), translation


@pytest.mark.parametrize("kind", QUICK)
def test_a_raw_config_is_read_as_transformers_means_it(kind, tmp_path):
    distance, translation = difference(kind, tmp_path)
    assert translation.added or translation.changed
    assert distance < ROUNDING or translation.notes


@pytest.mark.heavy
@pytest.mark.parametrize("kind", [kind for kind in tiny.types() if kind not in UNBUILT])
def test_every_type_agrees_or_says_what_upstream_does_otherwise(kind, tmp_path):
    try:
        distance, translation = difference(kind, tmp_path)
    except MismatchError:  # names or shapes: the note must say why
        _, config, target = raw(kind, tmp_path)
        assert to_mlx(config, target).notes
        return
    bound = np.inf if translation.notes else SMALL.get(kind, ROUNDING)
    assert distance < bound


LLAMA_31 = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.43.0.dev0",
    "vocab_size": 128256,
}
QWEN_25 = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 896,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 21,
    "model_type": "qwen2",
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 151936,
}
DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "v_head_dim": 128,
    "vocab_size": 129280,
}


@pytest.mark.parametrize("config", [LLAMA_31, QWEN_25, DEEPSEEK_V3], ids=lambda c: c["model_type"])
def test_a_config_of_transformers_4_passes_unharmed(config):
    target = find(config)
    found = to_mlx(config, target)
    assert not found.changed
    assert not found.removed
    args = type(target.build(config).args)
    before, after = args.from_dict(dict(config)), args.from_dict(dict(found.config))
    assert {k: v for k, v in vars(after).items() if k in config} == {
        k: v for k, v in vars(before).items() if k in config
    }
    assert set(found.added) <= {"head_dim", "attention_bias", "layer_types"}


def test_a_default_that_only_transformers_knows_is_written():
    config = {k: v for k, v in LLAMA_31.items() if k not in {"rope_theta", "rope_scaling"}}
    config.pop("tie_word_embeddings")  # transformers says untied, mlx-lm would tie
    found = to_mlx(
        {**config, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, find(config)
    )
    assert found.config["tie_word_embeddings"] is False
    assert found.config["rope_theta"] == 5e5


def test_what_is_given_is_not_changed(tmp_path):
    config = json.loads(tiny.configuration("qwen3_vl", {}).to_json_string(use_diff=False))
    before = json.dumps(config)
    to_mlx(config, find(config, "mlx-lm"))
    assert json.dumps(config) == before


def test_a_type_that_transformers_does_not_know_is_left_as_it_is():
    config = {"model_type": "xverse", **{k: v for k, v in LLAMA_31.items() if k != "model_type"}}
    found = to_mlx(config, find(config))
    assert (found.added, found.changed, found.removed) == ({"head_dim": 128}, {}, {})


def test_a_users_own_class_gets_its_config_as_it_is():
    target = Target("user", "", "", "somewhere:Model")
    assert to_mlx({"model_type": "own", "width": 3}, target).config == {
        "model_type": "own",
        "width": 3,
    }


def test_a_value_that_the_class_does_not_read_is_noted():
    config = json.loads(tiny.configuration("starcoder2", {}).to_json_string(use_diff=False))
    target = find(config)
    assert "hidden_act" in to_mlx({**config, "hidden_act": "gelu_pytorch_tanh"}, target).notes[0]
    assert to_mlx({**config, "hidden_act": "gelu"}, target).notes == ()


@pytest.mark.parametrize("kind", ["qwen2_vl", pytest.param("qwen3_vl", marks=pytest.mark.heavy)])
def test_mlx_vlm_finds_every_parameter_of_its_class(kind, tmp_path):
    tiny.make(kind, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    target = find(config, "mlx-vlm")
    translation = to_mlx(config, target)
    weights = mx.load(str(tmp_path / "model.safetensors"))
    found = target.sanitize(translation.config, weights)
    expected = target.parameters(translation.config)
    assert {n: tuple(w.shape) for n, w in found.items()} == {
        n: h.shape for n, h in expected.items()
    }
    assert to_torch(translation.config, translation.recorded()).config == config
