"""Tiny models of the families that adapters are put on, and adapters trained on them by PEFT."""

from __future__ import annotations

import copy
import json
from typing import NamedTuple

import peft
import torch
import transformers

from weighbridge.converters.checkpoints import Header
from weighbridge.converters.libraries.modules import torch_kinds

SIZES = {"vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
LLAMA = SIZES | {"intermediate_size": 24, "num_key_value_heads": 1, "tie_word_embeddings": False}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "head_dim": 8}
CONFIGS = {
    "llama": LLAMA,
    "qwen3_moe": LLAMA | EXPERTS,
    "qwen2_moe": LLAMA | EXPERTS | {"shared_expert_intermediate_size": 20},
    "gpt_oss": LLAMA | {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8},
    "gpt2": {"vocab_size": 31, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32},
    "bert": SIZES | {"intermediate_size": 24},
    "t5": {"vocab_size": 31, "d_model": 16, "d_ff": 24, "d_kv": 8, "num_layers": 2, "num_heads": 2},
}
CLASSES = {
    "bert": transformers.AutoModelForSequenceClassification,
    "t5": transformers.AutoModelForSeq2SeqLM,
}
IDS = torch.tensor([[3, 12, 15, 4, 5, 6]])


class Base(NamedTuple):
    """A model before training: itself, its weights, and what an adapter has to know of it."""

    model: torch.nn.Module
    weights: dict[str, torch.Tensor]
    headers: dict[str, Header]
    kinds: dict[str, str]


def build(family: str, **changes) -> Base:
    torch.manual_seed(0)
    config = transformers.CONFIG_MAPPING[family](**(CONFIGS[family] | changes))
    auto = CLASSES.get(family, transformers.AutoModelForCausalLM)
    model = auto.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():  # biases and experts start at zero or at whatever memory holds
        for parameter in model.parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape))
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    headers = {name: Header("F32", tuple(tensor.shape)) for name, tensor in weights.items()}
    return Base(model, weights, headers, dict(torch_kinds(model)))


def run(model: torch.nn.Module) -> torch.Tensor:
    """Return the outputs for a few tokens."""
    more = {"decoder_input_ids": IDS[:, :3]} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        return model(input_ids=IDS, **more).logits


def trained(base: Base, folder, **options) -> torch.nn.Module:
    """Return BASE with an adapter on, of random numbers, after saving it in FOLDER as PEFT does."""
    options = {"r": 4, "lora_alpha": 6} | options
    tuned = peft.get_peft_model(copy.deepcopy(base.model), peft.LoraConfig(**options)).eval()
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            if "magnitude" in name:
                parameter.mul_(1 + 0.2 * torch.rand(parameter.shape))
            elif "lora_" in name or "modules_to_save" in name:
                parameter.copy_(0.3 * torch.randn(parameter.shape))
    tuned.save_pretrained(folder)
    return tuned


def loaded(base: Base, folder) -> torch.nn.Module:
    """Return BASE with the adapter in FOLDER on, as PEFT loads it; every tensor must find its place."""
    from safetensors.torch import load_file

    model = peft.PeftModel.from_pretrained(copy.deepcopy(base.model), folder).eval()
    there = peft.get_peft_model_state_dict(model, save_embedding_layers=False)
    file = load_file(folder / "adapter_model.safetensors")
    assert set(there) <= set(file)
    assert all("base_layer.weight" in name for name in set(file) - set(there))
    assert all(torch.equal(there[name], file[name]) for name in there)
    return model


def config_in(folder) -> dict:
    return json.loads((folder / "adapter_config.json").read_text())
