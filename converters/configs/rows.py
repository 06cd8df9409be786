"""How keys that MLX classes read follow from a transformers config: tables of rows."""

from __future__ import annotations

from typing import Final

from .deriving import (
    Row,
    all_rotate,
    always,
    compression,
    each_layer,
    flags,
    full_layer,
    head_dim,
    image_token,
    initials,
    joined_towers,
    linear_attention,
    long_rope,
    nested_tower,
    of_part,
    period,
    renamed,
    rope_scaling,
    rope_value,
    rotary_dim,
    same_as,
    scaled_types,
    sectioned,
    shared_rope,
    text_value,
    time_steps,
    tokens_before,
    windowed_heads,
)
from .translation import ABSENT

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
    "unlimited_ocr": {"projector_config": joined_towers},
    "unlimited_ocr_text": {
        "first_k_dense_replace": lambda source: source.get("mlp_layer_types", []).count("dense"),
        "sliding_window_size": same_as("sliding_window"),
    },
    "unlimited_ocr_vision": {
        **{
            key: of_part("encoder_config", key)
            for key in (
                *("hidden_size", "intermediate_size", "num_attention_heads", "num_channels"),
                *("image_size", "patch_size", "layer_norm_eps"),
            )
        },
        "layers": of_part("encoder_config", "num_hidden_layers"),
        "params": lambda source: dict(source.part("sam_config").written) or ABSENT,
    },
    "florence2": {
        "image_feature_source": always(["spatial_avg_pool", "temporal_avg_pool"]),
        "image_pos_embed": lambda source: {
            "type": "learned_abs_2d",
            "max_pos_embeddings": source.part("vision_config").find("max_position_embeddings"),
        },
        "visual_temporal_embedding": lambda source: {
            "type": "COSINE",
            "max_temporal_embeddings": source.part("vision_config").find("max_temporal_embeddings"),
        },
    },
    "florence_vision": {"dim_embed": same_as("embed_dim"), "in_chans": same_as("in_channels")},
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
    "unlimited_ocr_vision": {"model_type": always("vision")},
    "florence_vision": {"model_type": always("davit")},
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
