"""The layout of published checkpoints, where it differs from what ``save_pretrained`` writes.

Every one of these is read by transformers as well as the saved one is (a test loads both and
compares the logits bit for bit); where saving is not the reverse of loading, the fault is listed in
`faults.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Tensors = dict[str, "torch.Tensor"]
Config = Mapping[str, Any]
Change = Callable[[Tensors, Config], Iterator[tuple[str, "torch.Tensor"]]]


def renamed(*pairs: tuple[str, str]) -> Change:
    """Return the change that replaces patterns in every name, one after the other."""

    def change(tensors: Tensors, _: Config) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in tensors.items():
            for pattern, text in pairs:
                name = re.sub(pattern, text, name)  # noqa: PLW2901
            yield name, tensor

    return change


def with_masks(tensors: Tensors, config: Config) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield names without ``transformer.``, and the causal masks that old versions saved."""
    import torch

    size = config["n_positions"]
    for name, tensor in tensors.items():
        yield name.removeprefix("transformer."), tensor
    for layer in range(config["n_layer"]):
        yield f"h.{layer}.attn.bias", torch.ones(size, size).tril()[None, None]


def with_buffers(tensors: Tensors, config: Config) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the masks and frequencies that old versions saved beside the weights."""
    import torch

    yield from tensors.items()
    size = config["max_position_embeddings"]
    for layer in range(config["num_hidden_layers"]):
        below = f"gpt_neox.layers.{layer}.attention"
        yield f"{below}.bias", torch.ones(size, size, dtype=torch.bool).tril()[None, None]
        yield f"{below}.masked_bias", torch.tensor(-1e9)
        yield f"{below}.rotary_emb.inv_freq", torch.ones(3)


def without_zero_experts(tensors: Tensors, config: Config) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the experts that compute."""
    for name, tensor in tensors.items():
        found = re.search(r"\.experts\.(\d+)\.", name)
        if not found or int(found[1]) < config["n_routed_experts"]:
            yield name, tensor


def output_by_kind(tensors: Tensors, config: Config) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the output projections, named ``dense`` only where attention is full."""
    for name, tensor in tensors.items():
        found = re.fullmatch(r"model\.layers\.(\d+)\.attention\.dense\.weight", name)
        linear = found and config["layer_types"][int(found[1])] == "linear_attention"
        yield (name.replace("dense", "o_proj") if linear else name), tensor


def stacked_experts(tensors: Tensors, _: Config) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the experts of a layer as two tensors, gate and up together."""
    import torch

    groups: dict[tuple[str, str], list[torch.Tensor]] = {}
    for name, tensor in tensors.items():
        found = re.fullmatch(r"(.*\.experts)\.\d+\.(\w+_proj)\.weight", name)
        if found:
            groups.setdefault((found[1], found[2]), []).append(tensor)
        else:
            yield name, tensor
    for experts in dict.fromkeys(below for below, _ in groups):
        gate, up, down = (
            torch.stack(groups[experts, f"{part}_proj"]) for part in ("gate", "up", "down")
        )
        yield f"{experts}.gate_up_proj", torch.cat([gate, up], dim=1)
        yield f"{experts}.down_proj", down


def transposed_experts(tensors: Tensors, _: Config) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the stacked experts as ``(expert, in, out)``."""
    for name, tensor in tensors.items():
        turned = name.endswith((".experts.gate_up_proj", ".experts.down_proj"))
        yield name, tensor.transpose(1, 2).contiguous() if turned else tensor


def with_shared_keys(tensors: Tensors, config: Config) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield keys and values, unused, for the layers that take another layer's."""
    text = config["text_config"]
    yield from tensors.items()
    first = text["num_hidden_layers"] - text["num_kv_shared_layers"]
    for layer in range(first, text["num_hidden_layers"]):
        for part in ("k_proj", "v_proj", "k_norm"):
            name = "model.language_model.layers.{}.self_attn." + part + ".weight"
            yield name.format(layer), tensors[name.format(0)].flip(0)


def packed_in_fp4(tensors: Tensors, _: Config) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield experts as mxfp4: random codes, 32 to a block, and a power of two for each block."""
    import torch

    noise = torch.Generator().manual_seed(2)
    for name, tensor in tensors.items():
        if not name.endswith((".experts.gate_up_proj", ".experts.down_proj")):
            yield name, tensor
            continue
        experts, inputs, outputs = tensor.shape
        shape = (experts, outputs, inputs // 32)
        codes = torch.randint(0, 256, (*shape, 16), generator=noise)
        scales = torch.randint(119, 123, shape, generator=noise)
        yield f"{name}_blocks", codes.to(torch.uint8)
        yield f"{name}_scales", scales.to(torch.uint8)


def packed_in_fp8(tensors: Tensors, _: Config) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield projections as fp8 with a scale for every 128 by 128 block, a power of two."""
    import torch

    for name, tensor in tensors.items():
        if name.endswith("_proj.weight") and tensor.ndim == 2:
            blocks = [-(-size // 128) for size in tensor.shape]
            powers = torch.arange(blocks[0] * blocks[1]).reshape(blocks)
            yield name, (tensor * 32).to(torch.float8_e4m3fn)
            yield f"{name}_scale_inv", 2.0 ** (-5 - powers)
        else:
            yield name, tensor


def packed_in_ternary(tensors: Tensors, _: Config) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the projections of the layers as -1, 0 and 1, four to a byte, and a scale for each."""
    import torch
    from transformers.integrations.bitnet import pack_weights

    for name, tensor in tensors.items():
        if name.endswith("_proj.weight"):
            scale = tensor.abs().mean()
            yield name, pack_weights((tensor / scale).round().clamp(-1, 1))
            yield name.replace("weight", "weight_scale"), torch.tensor([scale])
        else:
            yield name, tensor


# Model type -> what makes its saved tensors published ones.
LAYOUTS: dict[str, Change] = {
    "bailing_hybrid": output_by_kind,
    "bitnet": packed_in_ternary,
    "deepseek_v3": packed_in_fp8,
    "gemma3": renamed((r"^vision_tower\.", "vision_tower.vision_model.")),
    "gemma3n": with_shared_keys,
    "gpt2": with_masks,
    "gpt_neox": with_buffers,
    "gpt_oss": packed_in_fp4,
    "kimi_k25": renamed(
        (r"^language_model\.model\.blocks\.", "language_model.model.layers."),
        (r"^model\.mm_projector\.", "mm_projector."),
        (r"^vision_tower\.encoder\.patch_embed\.", "vision_tower.patch_embed."),
    ),
    "kimi_linear": renamed((r"\.block_sparse_moe\.(gate|up|down)_proj\.", r".mlp.\1_proj.")),
    "llava": renamed((r"^vision_tower\.", "vision_tower.vision_model.")),
    "longcat_flash": without_zero_experts,
    "muse_glimmer": renamed((r"^model\.vision_", "vision_")),
    "qwen3_5_moe": stacked_experts,
    "qwen3_vl_moe": transposed_experts,
}


def in_experts_order(tensors: Tensors, config: Config) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield unpacked experts as the class stacks packed ones, ``(expert, out, in)``."""
    for name, tensor in transposed_experts(tensors, config):
        turned = name.endswith((".experts.gate_up_proj", ".experts.down_proj"))
        yield (f"{name}.weight" if turned else name), tensor


def parted_by_sizes(tensors: Tensors, config: Config) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield convolutions of queries, keys and values by their sizes; they are saved in thirds."""
    import torch

    size = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    names = {"attention_layer_norm": "input_layernorm"}
    names["feedforward_layer_norm"] = "post_attention_layernorm"
    for name, tensor in tensors.items():
        found = re.fullmatch(r"(.*)\.([qkv])_conv1d\.weight", name)
        if found and found[2] == "q":
            whole = torch.cat([tensors[f"{found[1]}.{it}_conv1d.weight"] for it in "qkv"])
            for it, part in zip("qkv", whole.tensor_split([size, 2 * size]), strict=True):
                yield f"{found[1]}.{it}_conv1d.weight", part.contiguous()
        elif not found:
            middle = name.split(".")[-2]
            yield name.replace(middle, names.get(middle, middle)), tensor


# Model type -> what makes of its saved tensors those that mlx-lm's class reads, where that is no
# published layout or a packed one.
READ: dict[str, Change] = {
    "gpt_oss": in_experts_order,
    "nanochat": renamed(
        ("^model.embed_tokens", "transformer.wte"),
        ("^model.layers", "transformer.h"),
        ("self_attn.o_proj", "attn.c_proj"),
        (r"self_attn\.(.)_proj", r"attn.c_\1"),
        ("mlp.fc1", "mlp.c_fc"),
        ("mlp.fc2", "mlp.c_proj"),
    ),
    "olmo_hybrid": parted_by_sizes,
    "sam3_video": renamed((r"^(tracker_model\.){2}", "tracker_model.")),  # as published
}
# What the configuration of packed checkpoints says, and the sizes that packing needs.
PACKED: dict[str, dict[str, Any]] = {
    "bitnet": {
        "quant_method": "bitnet",
        "linear_class": "autobitlinear",
        "quantization_mode": "offline",
    },
    "deepseek_v3": {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    },
    "gpt_oss": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"],
    },
}
REREAD = {
    "bitnet",
    "deepseek_v3",
    "gpt_oss",
}  # whose values are other ones once packed, and which transformers unpacks
RECODED = {"bitnet"}  # whose codes are written in MLX's own format
SIZES: dict[str, dict[str, Any]] = {
    "bitnet": {"tie_word_embeddings": True, "hidden_size": 64, "intermediate_size": 96},
    "deepseek_v3": {
        "hidden_size": 256,
        "intermediate_size": 384,
    },  # whole blocks: torch reads no others
    "gpt_oss": {"hidden_size": 96, "intermediate_size": 160},
}


def made_readable(model_type: str, folder: Path) -> None:
    """Rewrite the saved tensors in FOLDER as mlx-lm's class of MODEL_TYPE reads them, none packed."""
    change = READ.get(model_type) or (None if model_type in PACKED else LAYOUTS.get(model_type))
    if change:
        rewrite(folder, change)


def publish(model_type: str, folder: Path) -> None:
    """Rewrite the tensors in FOLDER as the published checkpoints of MODEL_TYPE have them.

    Raises:
        KeyError: they are published as they are saved.
    """
    config = rewrite(folder, LAYOUTS[model_type])
    if model_type in PACKED:
        packed = {**config, "quantization_config": PACKED[model_type]}
        (folder / "config.json").write_text(json.dumps(packed))


def rewrite(folder: Path, change: Change) -> dict[str, Any]:
    """Rewrite the tensors in FOLDER by CHANGE; return its configuration."""
    from safetensors.torch import load_file, save_file

    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    changed = dict(change(load_file(folder / "model.safetensors"), config))
    save_file(changed, folder / "model.safetensors", metadata={"format": "pt"})
    return config
