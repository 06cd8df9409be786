"""Tiny random models and the GGUF files of them, made as llama.cpp's converter makes them."""

from __future__ import annotations

import re
from pathlib import Path

import gguf
import numpy as np
import torch

SIZES = {
    "vocab_size": 50,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 32,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
EXPERTS = {"num_local_experts": 3, "num_experts_per_tok": 2}
QWEN_EXPERTS = {"moe_intermediate_size": 96, "num_experts": 3, "num_experts_per_tok": 2}
QWEN_EXPERTS["norm_topk_prob"] = True  # llama.cpp knows no other qwen3_moe, nor is one published
GPT2 = {"vocab_size": 50, "n_positions": 32, "n_embd": 64, "n_layer": 2, "n_head": 4}
# family -> classes of transformers, what its config adds, llama.cpp's name.
FAMILIES = {
    "llama": ("Llama", {**SIZES, "attention_bias": True}, "llama"),
    "qwen3": ("Qwen3", {**SIZES, "tie_word_embeddings": True}, "qwen3"),
    "gemma": ("Gemma", SIZES, "gemma"),
    "gpt2": ("GPT2", GPT2, "gpt2"),
    "mixtral": ("Mixtral", {**SIZES, **EXPERTS}, "llama"),
    "qwen3_moe": ("Qwen3Moe", {**SIZES, **QWEN_EXPERTS}, "qwen3moe"),
}
TRANSPOSED = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")


def module(family: str):
    """Return a random model of FAMILY whose norms and biases matter as much as its matrices."""
    import transformers

    prefix, config, _ = FAMILIES[family]
    head = "LMHeadModel" if family == "gpt2" else "ForCausalLM"
    made = getattr(transformers, f"{prefix}{head}")(
        getattr(transformers, f"{prefix}Config")(**config)
    )
    generator = torch.Generator().manual_seed(20)
    with torch.no_grad():
        for name, parameter in sorted(made.named_parameters()):
            one = float(name.endswith("norm.weight") and family != "gemma")
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator) + one)
    return made.eval()


def tuned(family: str, dtype=torch.bfloat16):
    """Return the same model with a low-rank change of its projections, as merging leaves it."""
    made = module(family)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in sorted(made.named_parameters()):
            if parameter.dim() > 1 and not re.search("embed|wte|wpe|lm_head", name):
                *lead, rows, columns = parameter.shape
                b = torch.randn(*lead, rows, 2, generator=generator)
                a = torch.randn(*lead, 2, columns, generator=generator)
                parameter.add_(0.02 * b @ a)
    return made.to(dtype)


def saved(model, folder: Path) -> Path:
    """Return FOLDER with MODEL in it."""
    model.save_pretrained(folder)
    return folder


def permuted(weights: torch.Tensor, heads: int) -> torch.Tensor:
    """Return WEIGHTS as ``LlamaModel.permute`` in llama.cpp's ``conversion/llama.py`` has them."""
    shape = (heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
    return weights.reshape(shape).swapaxes(1, 2).reshape(weights.shape)


def transformed(name: str, tensor: torch.Tensor, family: str) -> torch.Tensor:
    """Return what llama.cpp's classes make of TENSOR before they rename it."""
    if family in ("llama", "mixtral") and re.search(r"\.[qk]_proj\.", name):
        return permuted(tensor, 4 if ".q_proj." in name else 2)
    if family == "gemma" and name.endswith("norm.weight"):
        return tensor.float() + 1
    if family == "gpt2" and name.endswith(TRANSPOSED):
        return tensor.T
    return tensor


def tensors(family: str, folder: Path) -> dict[str, np.ndarray]:
    """Return the tensors of the checkpoint in FOLDER under llama.cpp's names, in float32."""
    from safetensors.torch import load_file

    names = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}
    table = gguf.get_tensor_name_map(names[FAMILIES[family][2]], 2)
    stacks: dict[str, dict[int, torch.Tensor]] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        expert = re.search(r"\.experts\.(\d+)\.", name)
        whole = re.sub(r"\.experts\.\d+\.", ".experts.", name)
        target = table.get_name(whole, try_suffixes=(".weight", ".bias"))
        assert target, name
        value = transformed(name, tensor, family)
        stacks.setdefault(target, {})[int(expert[1]) if expert else 0] = value
    return {
        target: (torch.stack([parts[i] for i in sorted(parts)]) if "_exps." in target else parts[0])
        .float()
        .contiguous()
        .numpy()
        for target, parts in stacks.items()
    }


def kind_of(name: str, array: np.ndarray, kind: str) -> str:
    """Return how llama.cpp stores the tensor NAME in a file that is mostly KIND."""
    plain = array.ndim < 2 or name.endswith("_norm.weight")
    return "F32" if plain or "ffn_gate_inp" in name or name == "position_embd.weight" else kind


def like_file(
    path: Path, family: str, folder: Path, kind: str = "BF16", extra=lambda writer: None
) -> Path:
    """Return PATH with a GGUF file in it as llama.cpp would make of the checkpoint in FOLDER."""
    architecture = FAMILIES[family][2]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("The base")
    writer.add_block_count(2)
    writer.add_head_count(4)
    if family != "gpt2":
        writer.add_head_count_kv(2)
    writer.add_file_type({"F32": 0, "F16": 1, "Q8_0": 7, "BF16": 32}.get(kind, 2))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{i}" for i in range(49)] + ["né\u0120"])
    writer.add_array("tokenizer.ggml.scores", [0.5] * 50)
    extra(writer)
    for name, array in tensors(family, folder).items():
        stored = gguf.GGMLQuantizationType[kind_of(name, array, kind)]
        writer.add_tensor(name, gguf.quantize(array, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
