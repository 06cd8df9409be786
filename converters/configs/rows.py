"""How a key that an MLX class reads follows from a transformers config: one row each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from .source import Source
from .translation import ABSENT

Row = Callable[[Source], Any]
SLIDES: Final = ("sliding_attention", "full_attention")


def always(value: Any) -> Row:
    """Return the row of a constant: what transformers' code does, and no config says."""
    return lambda _: value


def same_as(key: str) -> Row:
    """Return the row of a key that has another name in transformers."""
    return lambda source: source.find(key)


def rope_value(key: str, layer: str = "full_attention", default: Any = ABSENT) -> Row:
    """Return the row of a value that transformers 5 keeps in ``rope_parameters``."""
    return lambda source: source.rope(layer).get(key, source.written.get(key, default))


def head_dim(source: Source) -> Any:
    """Return the size of a head, the hidden size shared out where no key says it."""
    declared = source.get("head_dim")
    heads, hidden = source.get("num_attention_heads"), source.get("hidden_size")
    return declared or (hidden // heads if hidden and heads else ABSENT)


def rotary_dim(source: Source) -> Any:
    """Return how many dimensions of a head rotate."""
    return int(head_dim(source) * source.rope().get("partial_rotary_factor", 1.0))


def rope_scaling(source: Source) -> Any:
    """Return the rotary scaling as transformers 4 wrote it: nothing for the default, else typed."""
    found = source.rope()
    kind = found.get("rope_type") or found.get("type") or "default"
    if kind == "default" and "mrope_section" not in found:
        return None
    return {**found, "type": kind, "rope_type": kind}


def sectioned(source: Source) -> Any:
    """Return the rotary scaling under the names of HunYuan's own code."""
    found = source.rope()
    kind = "xdrope" if "mrope_section" in found else found.get("rope_type", "default")
    return {**found, "type": kind, "xdrope_section": found.get("mrope_section")}


def tokens_before(source: Source) -> Any:
    """Return what C-RADIO's own code counts the tokens before the patches by."""
    classes, registers = source.get("num_cls_tokens"), source.get("num_registers")
    teachers = [{"name": str(number)} for number in range(classes)]
    return {"teachers": teachers, "register_multiple": classes + registers if registers else None}


def shared_rope(source: Source) -> Any:
    """Return the rotary parameters that all layers that rotate have, once; by layer where they differ."""
    written = source.get("rope_parameters", {})
    found = [written[kind] for kind in SLIDES if isinstance(written.get(kind), dict)]
    alike = found and all(it == found[0] for it in found)
    return dict(found[0]) if alike and written.get(SLIDES[0]) else written


def all_rotate(source: Source) -> bool:
    """Return whether layers of full attention rotate as well."""
    written = source.get("rope_parameters", {})
    return written.get(SLIDES[1]) is not None or SLIDES[0] not in written


def initials(letters: dict[str, str]) -> Row:
    """Return the row of a pattern with one of LETTERS for each layer type."""
    return lambda source: "".join(letters[kind] for kind in source.get("layer_types", []))


def flags(kind: str, key: str = "layer_types") -> Row:
    """Return the row of a list that is 1 where the layer type in KEY is KIND."""
    return lambda source: [int(layer == kind) for layer in source.get(key, [])]


def period(source: Source) -> Any:
    """Return the distance between layers of full attention."""
    kinds = source.get("layer_types", [])
    return kinds.index("full_attention") + 1 if "full_attention" in kinds else len(kinds) + 1


def full_layer(key: str) -> Row:
    """Return the row of a value that layers of full attention have for themselves."""

    def row(source: Source) -> Any:
        kinds = source.get("layer_types", [])
        place = str(kinds.index("full_attention")) if "full_attention" in kinds else ""
        layers = source.written.get("per_layer_config") or {}
        return (layers.get(place) or {}).get(key, source.find(key))

    return row


def renamed(names: dict[str, str], key: str = "layer_types") -> Row:
    """Return the row of a list of layer types under the NAMES that the class knows."""
    return lambda source: [names.get(kind, kind) for kind in source.get(key, [])]


def long_rope(source: Source) -> Any:
    """Return the rotary scaling for a class that knows long rotary factors only."""
    trivial = {
        "type": "longrope",
        "short_factor": 1.0,
        "long_factor": 1.0,
        "original_max_position_embeddings": source.get("max_position_embeddings"),
    }
    return rope_scaling(source) or trivial


def text_value(key: str) -> Row:
    """Return the row of a key that only the text part has."""
    return lambda source: source.part("text_config").find(key)


def image_token(source: Source) -> Any:
    """Return the id that stands for a picture, by whichever of its two names it has."""
    found = source.find("image_token_index")
    return source.find("image_token_id") if found is ABSENT else found


def compression(source: Source) -> list[int]:
    """Return how many tokens of each layer become one, 0 where none do."""
    rates = source.get("compress_rates", {})
    return [rates.get(kind, 0) for kind in source.get("layer_types", [])]


def nested_tower(source: Source) -> dict[str, Any]:
    """Return Molmo's tower as its own code has it: two parts, the adapter one of them."""
    vision, adapter = source.part("vision_config"), source.part("adapter_config")
    own = {
        "image_patch_size": vision.get("patch_size"),
        "image_num_pos": vision.get("num_position_embeddings"),
        "image_default_input_size": vision.get("image_size"),
    }
    features = {"vit_layers": adapter.get("vision_feature_layer")}
    parts = {"vit": {**vision.written, **own}, "adapter": {**adapter.written, **features}}
    return {**vision.written, **{f"{name}_config": part for name, part in parts.items()}}


def linear_attention(source: Source) -> dict[str, Any]:
    """Return Kimi's own group of keys; layers count from 1."""
    kinds = list(enumerate(source.get("layer_types", []), 1))
    return {
        "kda_layers": [place for place, kind in kinds if kind != "full_attention"],
        "full_attn_layers": [place for place, kind in kinds if kind == "full_attention"],
        "num_heads": source.get("linear_num_heads"),
        "head_dim": source.get("linear_head_dim"),
        "short_conv_kernel_size": source.get("linear_conv_kernel_dim"),
    }


def each_layer(key: str, default: Any) -> Row:
    """Return the row of a list of a rotary value that types of layers have for themselves."""

    def row(source: Source) -> list[Any]:
        return [source.rope(kind).get(key, default) for kind in source.get("layer_types", [])]

    return row


def scaled_types(source: Source) -> list[str]:
    """Return the types of layers whose rotary positions are scaled."""
    kinds = dict.fromkeys(source.get("layer_types", []))
    return [kind for kind in kinds if source.rope(kind).get("rope_type", "default") != "default"]


def windowed_heads(source: Source) -> Any:
    """Return Step's own group of keys: the heads of layers with a window."""
    heads, shared = source.get("num_sliding_attention_heads"), source.get("num_key_value_heads")
    return {"num_attention_heads": heads, "num_attention_groups": shared} if heads else ABSENT


def time_steps(source: Source) -> list[Any]:
    """Return the limits of time steps, from below that which transformers computes with."""
    return [source.get("time_step_min", 0.0), *source.get("time_step_limit")[1:]]


# Key of an MLX class -> its value. What is not here is transformers' value of the same name.
GENERIC: Final[dict[str, Row]] = {
    "rope_theta": rope_value("rope_theta"),
    "rotary_emb_base": rope_value("rope_theta"),
    "rope_local_base_freq": rope_value("rope_theta", "sliding_attention"),
    "swa_rope_theta": rope_value("rope_theta", "sliding_attention"),
    "partial_rotary_factor": rope_value("partial_rotary_factor", default=1.0),
    "rotary_pct": rope_value("partial_rotary_factor", default=1.0),
    "rotary_dim": rotary_dim,
    "rope_scaling": rope_scaling,
    "head_dim": head_dim,
    "image_token_index": image_token,
    "n_ctx": same_as("max_position_embeddings"),
    "vocab_size": lambda source: source.get("vocab_size") or text_value("vocab_size")(source),
}

NOAUX: Final[dict[str, Row]] = {
    "topk_method": always("noaux_tc"),
    "scoring_func": always("sigmoid"),
}
PICTURE_FRAME: Final[dict[str, Row]] = {
    "vision_start_token_id": same_as("image_start_token_id"),
    "vision_end_token_id": same_as("image_end_token_id"),
}
LIGHT: Final = {"linear_attention": "mamba", "full_attention": "attention"}
# Model type, or name of the MLX model file -> its own rows, before the generic ones.
SPECIFIC: Final[dict[str, dict[str, Row]]] = {
    "apertus": {"post_norm": always(False), "qk_norm": always(True), "mlp_bias": always(False)},
    "bailing_moe_v3": {
        "q_lora_rank": lambda source: source.get("q_lora_rank"),
        "moe_shared_expert_intermediate_size": same_as("moe_intermediate_size"),
    },
    "cohere2": {"sliding_window_pattern": period},
    "cohere_compass_text": {"rope_on_all_layers": all_rotate},
    "deepseek_v4": {
        "compress_ratios": compression,
        "num_hash_layers": lambda source: source.get("mlp_layer_types", []).count("hash_moe"),
    },
    "exaone4": {
        "sliding_window_pattern": initials({"sliding_attention": "L", "full_attention": "G"})
    },
    "exaone_moe": {
        "is_moe_layer": lambda source: [
            kind == "sparse" for kind in source.get("mlp_layer_types", [])
        ]
    },
    "flint": {
        "no_rope_layer_indices": lambda source: [
            place for place, full in enumerate(source.layers("full_attention")) if full
        ]
    },
    "gemma3": {"hidden_size": text_value("hidden_size")},
    "gemma3_text": {"sliding_window_pattern": period},
    "gemma4_text": {
        "global_head_dim": full_layer("head_dim"),
        "num_global_key_value_heads": full_layer("num_key_value_heads"),
        "hidden_size_per_layer_input": lambda source: source.get("hidden_size_per_layer_input", 0),
        "partial_rotary_factor": always(ABSENT),  # the class reads rope_parameters
    },
    "glm_moe_dsa": {**NOAUX, "moe_layer_freq": always(1)},
    "inkling_text": {
        "dense_intermediate_size": same_as("intermediate_size"),
        "sconv_kernel_size": same_as("conv_kernel_size"),
    },
    "kimi_k25_vision": {
        "depth": same_as("num_hidden_layers"),
        "embed_dim": same_as("hidden_size"),
        "num_heads": same_as("num_attention_heads"),
        "init_pos_emb_height": same_as("pos_emb_height"),
        "init_pos_emb_width": same_as("pos_emb_width"),
    },
    "kimi_linear": {
        "linear_attn_config": linear_attention,
        "num_experts": same_as("num_local_experts"),
        "num_experts_per_token": same_as("num_experts_per_tok"),
        "num_shared_experts": same_as("n_shared_experts"),
        "model_max_length": same_as("max_position_embeddings"),
        "first_k_dense_replace": lambda source: source.get("mlp_layer_types", []).count("dense"),
        "mla_use_nope": always(True),
        "rope_theta": always(10000.0),  # unused: no layer rotates
    },
    **dict.fromkeys(("glm4v", "glm4v_moe"), PICTURE_FRAME),
    "glm4v_moe_text": {"use_qk_norm": always(False)},
    "llama4_vision_model": {"vision_feature_layer": always(-1)},
    "lfm2": {"block_dim": same_as("hidden_size"), "block_ff_dim": same_as("intermediate_size")},
    "longcat_flash": {
        "attention_method": always("MLA"),
        "zero_expert_type": always("identity"),
        "mla_scale_q_lora": always(True),
        "mla_scale_kv_lora": always(True),
    },
    "mamba2": {
        "intermediate_size": lambda source: source.get("num_heads") * source.get("head_dim")
    },
    "mimo_v2_flash": {
        **NOAUX,
        "hybrid_layer_pattern": flags("sliding_attention"),
        "moe_layer_freq": flags("sparse", "mlp_layer_types"),
        "add_swa_attention_sink_bias": always(True),
        "add_full_attention_sink_bias": always(False),
        "n_shared_experts": always(None),
        "layernorm_epsilon": same_as("rms_norm_eps"),
        "sliding_window_size": same_as("sliding_window"),
        "swa_num_attention_heads": same_as("num_attention_heads"),
        "swa_num_key_value_heads": lambda source: 2 * source.get("num_key_value_heads"),
        "swa_head_dim": same_as("head_dim"),
        "swa_v_head_dim": same_as("v_head_dim"),
    },
    "minicpm3": {"rope_scaling": long_rope},
    "minimax": {"shared_intermediate_size": always(0)},
    "minimax_m3_vl_text": {"partial_rotary_factor": always(ABSENT)},  # rotary_dim says it
    "nemotron_h_omni": {
        "vit_hidden_size": same_as("vision_hidden_size"),
        "img_context_token_id": same_as("image_token_id"),
        "video_context_token_id": same_as("video_token_id"),
        "sound_context_token_id": same_as("audio_token_id"),
        "sound_config": same_as("audio_config"),
        "ps_version": always("v2"),
    },
    "radio": {
        "intermediate_size": lambda source: int(
            source.get("hidden_size") * source.get("mlp_ratio")
        ),
        "max_resolution": same_as("max_img_size"),
        "args": tokens_before,
    },
    "olmo": {"rms_norm_eps": always(1e-5)},  # of its norms, which no key names
    "qwen3_next": {"full_attention_interval": period},
    "qwen3_vl_moe_text": {"norm_topk_prob": always(True)},
    "qwen4_exp_text": {
        "output_gate_type": lambda source: (
            source.get("output_gate_type") or source.get("hidden_act")
        )
    },
    "siglip": {"num_labels": always(ABSENT)},  # where it is not written there is no classifier
    "step3p5": {
        "use_head_wise_attn_gate": always(True),
        "attention_other_setting": windowed_heads,
        "moe_layers_enum": lambda source: ",".join(
            str(place)
            for place, kind in enumerate(source.get("mlp_layer_types", []))
            if kind == "sparse"
        ),
        "rope_theta": each_layer("rope_theta", 10000.0),
        "partial_rotary_factors": each_layer("partial_rotary_factor", 1.0),
        "yarn_only_types": scaled_types,
    },
    "step3p5_vision": {
        "width": same_as("hidden_size"),
        "layers": same_as("num_hidden_layers"),
        "heads": same_as("num_attention_heads"),
        "ls_init_value": same_as("layer_scale_init_value"),
    },
    "solar_open": {"first_k_dense_replace": always(0), "intermediate_size": same_as("hidden_size")},
}

# The same for keys that are written, where the class reads them otherwise than transformers does.
CORRECTED: Final[dict[str, dict[str, Row]]] = {
    "bailing_moe_v3": {
        "architectures": always(["BailingMoeV3ForCausalLM"]),  # mlx-lm chooses its file by it
        "layer_group_size": period,
        "head_dim": same_as("linear_head_dim"),  # only its layers of linear attention read it
    },
    "granitemoehybrid": {
        "layer_types": renamed(LIGHT),
        "position_embedding_type": lambda source: (
            "rope" if source.get("position_embedding_type") == "rope" else "nope"
        ),
    },
    "inkling_text": {"intermediate_size": same_as("moe_intermediate_size")},
    "minimax_m3_vl_text": {"rotary_dim": rotary_dim},
    "nemotron_h": {"time_step_limit": time_steps},
    # transformers does not scale the logits of these, as it does those of the language model alone
    "mlx-vlm aya_vision text_config": {"logit_scale": always(1.0)},
    "mlx-vlm cohere2_vision text_config": {"logit_scale": always(1.0)},
    "mlx-vlm molmo2": {"vision_config": nested_tower},
    "mlx-vlm hunyuan_vl text_config": {"rope_scaling": sectioned},
    # its class looks for the sections of positions beside the types of layers, and finds none there
    "mlx-vlm cohere_compass text_config": {"rope_parameters": shared_rope},
    "mlx-vlm qwen4_exp text_config": {
        "layer_types": renamed({"indexed_attention": "full_attention"})
    },
    # its class scales pictures by the size of the text part, and transformers writes a default here
    "mlx-vlm paligemma": {"hidden_size": text_value("hidden_size")},
    "kimi_k25_vision": {"model_type": always("moonvit")},
    # mlx-vlm's towers check a name, that of the whole model mostly, which transformers 4 wrote.
    **{
        f"{kind}_vision": {"model_type": always(kind)}
        for kind in (
            "qwen2_vl",
            "qwen2_5_vl",
            "qwen3_vl",
            "qwen3_vl_moe",
            "hunyuan_vl",
            "paddleocr_vl",
            "qwen4_exp",
        )
    },
}
