"""Checkpoints as transformers saves them, in the layout of the published ones that mlx-lm's classes read.

mlx-lm 0.32.2 refuses each of these as saved. Tensors that have the published layout already, or MLX's own,
stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import mlx.core as mx

Weights = dict[str, "mx.array"]
Config = Mapping[str, Any]
Change = Callable[[Weights, Config], Weights]
EXPERT: Final = re.compile(r"(model\.language_model\..*\.mlp)\.experts\.0\.(\w+)\.weight")


def renamed(*pairs: tuple[str, str]) -> Change:
    """Return the change that replaces patterns in every name, one after the other."""

    def change(weights: Weights, _: Config) -> Weights:
        return {new_name(name, pairs): value for name, value in weights.items()}

    return change


def new_name(name: str, pairs: tuple[tuple[str, str], ...]) -> str:
    """Return NAME with the patterns of PAIRS replaced.

    >>> new_name("transformer.h.0.bias", (("^transformer[.]", ""),))
    'h.0.bias'
    """
    for pattern, text in pairs:
        name = re.sub(pattern, text, name)
    return name


def output_by_kind(weights: Weights, config: Config) -> Weights:
    """Return WEIGHTS, output projections of linear attention called ``o_proj``."""
    linear = [n for n, it in enumerate(config.get("layer_types", ())) if it == "linear_attention"]
    pairs = [(rf"(layers\.{n}\.attention)\.dense\.", r"\1.o_proj.") for n in linear]
    return renamed(*pairs)(weights, config)


def computing_experts(weights: Weights, config: Config) -> Weights:
    """Return WEIGHTS without those of the experts that compute nothing."""
    last = config["n_routed_experts"]
    found = {name: re.search(r"\.mlp\.experts\.(\d+)\.", name) for name in weights}
    return {k: v for k, v in weights.items() if not (it := found[k]) or int(it[1]) < last}


def stacked(weights: Weights, config: Config) -> Weights:
    """Return WEIGHTS, the experts of a layer stacked as the class has them."""
    import mlx.core as mx

    result, count = dict(weights), (config.get("text_config") or config)["num_experts"]
    for name in weights:
        if found := EXPERT.fullmatch(name):
            below, part = found.groups()
            one = [result.pop(f"{below}.experts.{n}.{part}.weight") for n in range(count)]
            result[f"{below}.switch_mlp.{part}.weight"] = mx.stack(one)
    return result


def turned(weights: Weights, config: Config, *, suffix: str = "") -> Weights:
    """Return WEIGHTS, experts that lie as ``save_pretrained`` leaves them with their axes exchanged."""
    size = (config.get("text_config") or config)["hidden_size"]
    result: Weights = {}
    for name, value in weights.items():
        up = name.endswith(".experts.gate_up_proj")
        saved = up or name.endswith(".experts.down_proj")
        # Which axis is the hidden size tells one layout from the other.
        hidden = value.shape[-1 if bool(suffix) != up else -2] if saved else 0
        if hidden == size:
            result[name + suffix] = value.swapaxes(-1, -2)
        else:
            result[name] = value
    return result


def parted_at(ends: list[int], names: list[str], weights: Weights) -> Weights:
    """Return WEIGHTS, of which those with NAMES are one and parted at ENDS along the first axis."""
    import mlx.core as mx

    whole = mx.concatenate([weights[it] for it in names], axis=0)
    return weights | dict(zip(names, mx.split(whole, ends, axis=0), strict=True))


def parted(weights: Weights, config: Config) -> Weights:
    """Return WEIGHTS, convolutions of queries, keys and values parted by their sizes, not in thirds."""
    size = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    result = OLMO_HYBRID(weights, config)
    for name in [it for it in result if it.endswith(".q_conv1d.weight")]:
        names = [name.replace("q_conv1d", f"{part}_conv1d") for part in "qkv"]
        if result[name].shape[0] != size:
            result = parted_at([size, 2 * size], names, result)
    return result


OLMO_HYBRID: Final = renamed(
    (r"\.attention_layer_norm\.", ".input_layernorm."),
    (r"\.feedforward_layer_norm\.", ".post_attention_layernorm."),
)
NANOCHAT: Final = (
    (r"^model\.embed_tokens\.", "transformer.wte."),
    (r"^model\.layers\.(\d+)\.self_attn\.o_proj\.", r"transformer.h.\1.attn.c_proj."),
    (r"^model\.layers\.(\d+)\.self_attn\.([qkv])_proj\.", r"transformer.h.\1.attn.c_\2."),
    (r"^model\.layers\.(\d+)\.mlp\.fc1\.", r"transformer.h.\1.mlp.c_fc."),
    (r"^model\.layers\.(\d+)\.mlp\.fc2\.", r"transformer.h.\1.mlp.c_proj."),
)
# Model type -> what makes of saved tensors what mlx-lm's class reads.
CHANGES: Final[dict[str, Change]] = {
    "bailing_hybrid": output_by_kind,
    "gpt2": renamed((r"^transformer\.", "")),
    "gpt_oss": partial(turned, suffix=".weight"),
    "kimi_k25": renamed(
        (r"^language_model\.model\.blocks\.", "language_model.model.layers."),
        (r"^model\.mm_projector\.", "mm_projector."),
    ),
    "kimi_linear": renamed((r"\.block_sparse_moe\.(gate|up|down)_proj\.", r".mlp.\1_proj.")),
    "longcat_flash": computing_experts,
    "muse_glimmer": renamed((r"^model\.vision_", "vision_")),
    "nanochat": renamed(*NANOCHAT),
    "olmo_hybrid": parted,
    "qwen3_5_moe": stacked,
    "qwen3_vl_moe": turned,
}


# The same for classes of mlx-vlm.
INNER: Final = (r"^((?:model\.)?vision_tower)\.(?!vision_model\.)", r"\1.vision_model.")


def headless(weights: Weights, config: Config) -> Weights:
    """Return WEIGHTS, towers where the class has them, without the pooling that nothing reads."""
    inner = renamed(INNER)(weights, config)
    return without_pooling(inner, config)


def without_pooling(weights: Weights, _: Config) -> Weights:
    """Return WEIGHTS without what pools a whole picture to one vector: no language model reads it."""
    return {k: v for k, v in weights.items() if not re.search(r"vision_tower\.(.+\.)?head\.", k)}


def vocabulary(weights: Weights, config: Config) -> Weights:
    """Return WEIGHTS, embeddings parted where the vocabulary ends: ``save_pretrained`` halves them."""
    names = [f"model.transformer.wte.{part}embedding" for part in ("", "new_")]
    size = config["text_config"]["vocab_size"]
    if names[0] not in weights or weights[names[0]].shape[0] == size:
        return weights
    return parted_at([size], names, weights)


DEEPSEEK_V4: Final = (
    (r"^model\.hc_head\.hc_", "hc_head_"),
    (r"(\.attn)\.norm\.", r"\1.kv_norm."),
)
HY_V4: Final = (
    (r"^model\.hc_pre\.hc_head\.", "model.hc_head."),
    (r"^(model\.layers\.\d+)\.hc_pre\.(hc_\w+_layer)\.", r"\1.\2.hc_pre."),
    (r"^(model\.layers\.\d+\.mlp\..*)linear_gate\.", r"\1gate_proj."),
    (r"\.mlp\.experts\.(\w+)$", r".mlp.switch_mlp.\1.weight"),
    (r"^(model|lm_head)\.", r"language_model.\1."),
)


def unpacked(weights: Weights, config: Config) -> Weights:
    """Return dense WEIGHTS under the class's own names: its loading takes those that are packed alone."""
    import mlx.core as mx

    if any(name.endswith(("weight_scale", "proj_scale")) for name in weights):
        return weights
    result = renamed(*HY_V4)(weights, config)
    first, rank = config["qk_nope_head_dim"], config["kv_lora_rank"]
    for name in [it for it in result if it.endswith(".kv_b_proj.weight")]:
        heads = result.pop(name).reshape(config["num_attention_heads"], -1, rank)
        keys, values = mx.split(heads, [first], axis=1)
        result[name.replace("kv_b_proj", "embed_q")] = keys.swapaxes(-1, -2)
        result[name.replace("kv_b_proj", "unembed_out")] = values
    return result


FLORENCE: Final = (
    (r"^model\.language_model\.", "language_model.model."),
    (r"^model\.vision_tower\.", "vision_tower."),
    (r"^model\.multi_modal_projector\.image_position_embed\.", "image_pos_embed."),
    (r"^model\.multi_modal_projector\.", ""),
    (r"(\.convs\.\d+)\.conv\.", r"\1.proj."),
    (r"_block\.(conv\d)\.(?!fn\.)", r"_block.\1.fn.dw."),
    (r"\.(spatial|channel)_block\.norm1\.", r".\1_block.\1_attn.norm."),
    (r"\.spatial_attn\.norm\.", ".window_attn.norm."),
    (r"_block\.norm2\.", "_block.ffn.norm."),
    (r"\.(window|channel)_attn\.(qkv|proj)\.", r".\1_attn.fn.\2."),
    (r"\.ffn\.(fc\d)\.", r".ffn.fn.net.\1."),
)


def microsofts(weights: Weights, config: Config) -> Weights:
    """Return WEIGHTS under the names of Microsoft's own code for Florence-2, and as they lie there."""
    result = renamed(*FLORENCE)(weights, config)
    if "image_projection.weight" in result:
        result["image_projection"] = result.pop("image_projection.weight").swapaxes(0, 1)
    return result


SEEING: Final[dict[str, Change]] = {
    **dict.fromkeys(
        ("aya_vision", "cohere2_vision", "gemma3", "llava_next", "paligemma"),
        headless,
    ),
    "deepseek_v4": renamed(*DEEPSEEK_V4),
    "florence2": microsofts,
    "granite4_vision": renamed(INNER),
    "hy_v4": unpacked,
    "kimi_k25": CHANGES["kimi_k25"],
    "lfm2_vl": without_pooling,
    "llava": headless,
    "molmo2": vocabulary,
    "qwen3_vl_moe": turned,
    "sam3_video": renamed((r"^(tracker_model\.){2}", "tracker_model.")),
}


def change_for(library: str, kind: str) -> Change | None:
    """Return what makes of saved tensors what the class of LIBRARY for model type KIND reads."""
    return {"mlx-lm": CHANGES, "mlx-vlm": SEEING}.get(library, {}).get(kind)


def reading(part: Any, library: str, kind: str, config: Config) -> Any:
    """Return PART, a module of LIBRARY for model type KIND, whose loading reads what transformers saves."""
    change = change_for(library, kind)
    if change is None:
        return part
    own = getattr(part, "sanitize", dict)
    part.sanitize = lambda weights: own(change(dict(weights), config))
    return part
