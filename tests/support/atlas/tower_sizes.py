"""Sizes of towers, as data: what a type with pictures or sound needs on top of ``sizes.py``.

Pictures have to pass through: tokens that stand for them lie in the vocabulary, and what a tower gives
is as wide as the language model.
"""

from __future__ import annotations

from typing import Any

from weighbridge.tests.support.atlas.sizes import HIDDEN, LINEAR, SLIDING, TEXT, VISION

# Ids that no text of the atlas has, by the key under which a configuration names them.
TOKENS: dict[str, Any] = {
    "image_token_id": 130,
    "image_token_index": 130,
    "video_token_id": 131,
    "video_token_index": 131,
    "audio_token_id": 132,
    "vision_start_token_id": 126,
    "vision_end_token_id": 127,
    "image_start_token_id": 128,
    "image_end_token_id": 129,
    "boi_token_index": 128,
    "eoi_token_index": 129,
    "boi_token_id": 128,
    "eoi_token_id": 129,
}
FOUR: dict[str, Any] = {"image_size": 56}
OUT: dict[str, Any] = {"vision_config": {"hidden_size": HIDDEN}}
EVEN: dict[str, Any] = {"head_dim": 12}  # the hidden size by heads, where a class reads no other
ROPE: dict[str, Any] = {
    "rope_type": "default",
    "rope_theta": 1e6,
    "mrope_section": [2, 1, 1],
    "partial_rotary_factor": 0.5,
}
# Sizes of what says a text aloud, which no tower and no text passes through.
SPOKEN: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 36,
    "intermediate_size": 52,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
# A tower of two layers inserts its merger within them.
FIRST_LAYER: dict[str, Any] = {"insert_layer_id": 0, "vision_config": {"insert_layer_id": 0}}
SECTIONED: dict[str, Any] = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 2, 2]}
ALPHA: dict[str, Any] = {
    **SECTIONED,
    "rope_type": "dynamic",
    "alpha": 1000.0,
    "factor": 1.0,
    "mrope_section": [2, 2, 2, 2],
}
QWEN: dict[str, Any] = {"text_config": {"rope_parameters": ROPE}}
STEP: dict[str, Any] = {  # types of layers differ in all that they may differ in
    "num_sliding_attention_heads": 6,
    "moe_router_scaling_factor": 1.5,
    "swiglu_limits": [0, 0, 1.0, 0.5],
    "swiglu_limits_shared": [0.75, 0, 0, 1.0],
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {
            "rope_type": "llama3",
            "rope_theta": 5e6,
            "partial_rotary_factor": 0.5,
            "factor": 2.0,
            "original_max_position_embeddings": 64,
            "low_freq_factor": 1.0,
            "high_freq_factor": 32.0,
        },
    },
}

# What an embedding model sets that a language model of its type does not.
EMBEDDING: dict[str, dict[str, Any]] = {
    "gemma3_text": {"use_bidirectional_attention": True},
    "qwen3_vl": {"yes_token_id": 5, "no_token_id": 6},  # the tokens by which it scores
}
# What a tower needs that mlx-lm, which leaves it out, does not.
SEEING: dict[str, dict[str, Any]] = {
    "hy_v4": {"swiglu_limit": 1.0},  # what experts multiply goes beyond it
    "kimi_k25": {"projection_hidden_size": 32},
    "llama4": {"vision_config": {"vision_output_dim": 44}},
    "qwen3_5_text": {"rope_parameters": ROPE},
    "muse_glimmer": {
        "out_hidden_size": 128,
        "vision_config": {"pos_emb_height": 3, "pos_emb_width": 5},
    },
    "muse_spark": {"out_hidden_size": 128},
}
OF_LIBRARY = {"mlx-embeddings": EMBEDDING, "mlx-vlm": SEEING}
GRID: dict[str, Any] = {
    "text_config": {"rope_parameters": {**ROPE, "mrope_section": [1, 1, 1]}, "eos_token_id": [2]}
}
DETECTOR: dict[str, Any] = {
    "image_size": [64, 96],
    "id2label": {n: f"thing {n}" for n in range(7)},
    "num_queries": 10,
    "encoder_ffn_dim": 52,
    "decoder_ffn_dim": 56,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 3,
    "decoder_layers": 2,
}
LAYERS: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": 80,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
}


def detecting(hidden: int, layers: int) -> dict[str, Any]:
    """Return the parts of SAM 3 that find things, HIDDEN wide, LAYERS of them moving boxes."""
    own = {**LAYERS, "hidden_size": hidden}
    return {
        "vision_config": {
            "model_type": "sam3_vision_model",
            "fpn_hidden_size": hidden,
            "backbone_feature_sizes": [[32, 32], [16, 16], [8, 8]],
            "backbone_config": {
                **LAYERS,
                "model_type": "sam3_vit_model",
                "hidden_size": 32,
                "num_attention_heads": 2,
                "num_hidden_layers": 3,
                "image_size": 56,
                "patch_size": 7,
                "window_size": 4,
                "pretrain_image_size": 28,
                "global_attn_indexes": [1],
            },
        },
        "text_config": {
            **LAYERS,
            "hidden_size": 40,
            "vocab_size": 136,
            "max_position_embeddings": 256,
            "projection_dim": 36,
            "hidden_act": "gelu",
        },
        "geometry_encoder_config": {**own, "num_layers": 2},
        "detr_encoder_config": own,
        "detr_decoder_config": {
            **own,
            "num_queries": 10,
            "num_hidden_layers": layers,
            "intermediate_size": 8 * hidden,  # where texts are scored, mlx-vlm's class has no other
        },
        "mask_decoder_config": {"hidden_size": hidden, "num_attention_heads": 4},
    }


FOLLOWING = detecting(256, 2)  # transformers' tracker has no other width

OVERRIDES: dict[str, dict[str, Any]] = {
    "aya_vision": {"alignment_intermediate_size": 64, "text_config": EVEN, "vision_config": FOUR},
    "cohere_compass": {
        "text_config": {
            "layer_types": SLIDING,
            "rope_parameters": dict.fromkeys(SLIDING[:2], SECTIONED),
        }
    },
    "cohere2_vision": {
        "alignment_intermediate_size": 64,
        "text_config": EVEN,
        "vision_config": FOUR,
    },
    "deepseek_v4": {
        "num_key_value_heads": 1,
        "o_groups": 2,
        "o_lora_rank": 12,
        "index_topk": 8,
        "moe_intermediate_size": 20,
        "layer_types": [
            "sliding_attention",
            "heavily_compressed_attention",
            "compressed_sparse_attention",
            "sliding_attention",
        ],
        "mlp_layer_types": ["hash_moe", "moe", "moe", "moe"],
    },
    "diffusion_gemma": {"text_config": {"top_k_experts": 2}},
    "florence2": {
        "text_config": {
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 80,
            "decoder_ffn_dim": 88,
        },
        "vision_config": {
            "depths": [1, 1],
            "patch_size": [7, 3],
            "patch_stride": [4, 2],
            "patch_padding": [3, 1],
            "patch_prenorm": [False, True],
            "embed_dim": [24, 32],
            "num_heads": [2, 4],
            "num_groups": [2, 4],
            "window_size": 4,
            "projection_dim": HIDDEN,
        },
    },
    "gemma3": {"mm_tokens_per_image": 4, "vision_config": FOUR},
    "gemma4_unified": {"vision_config": {"mm_embed_dim": HIDDEN, "patch_size": 4}},
    "gemma4": {"audio_config": {"subsampling_conv_channels": [128, 8]}},  # 128 frequencies of sound
    "glm4v": GRID,
    "glm4v_moe": GRID,
    "glm_ocr": GRID,
    "glm5_next": {
        "text_config": {
            "num_key_value_heads": 4,
            "qk_rope_head_dim": 0,
            "linear_num_heads": 2,
            "linear_head_dim": 16,
        },
        "vision_config": {"projection_intermediate_size": 72},
    },
    "granite4_vision": {
        "downsample_rate": "1/2",
        "deepstack_layer_map": [[0, 0]],
        "spatial_target_layers": [1],
        "image_grid_pinpoints": [[112, 112]],
        "qformer_config": {"num_hidden_layers": 1, "intermediate_size": 3072},  # mlx-vlm reads none
        "vision_feature_select_strategy": "full",
        "vision_config": {
            **FOUR,
            "model_type": "siglip_vision_model",
            "hidden_size": 64,
        },  # a head of the projector has 64
    },
    "hrm_text": {"num_key_value_heads": 4},  # published with as many as heads
    "hunyuan_vl": {"text_config": {"rope_parameters": ALPHA}},
    "idefics2": {"text_config": EVEN},
    "idefics3": {"text_config": EVEN, "vision_config": FOUR},
    "inkling_mm_model": {
        "text_config": {
            "layer_types": ["hybrid_sliding", "hybrid"] * 2,
            "mlp_layer_types": ["dense", "sparse"] * 2,
            "rel_extent": 24,
            "d_rel": 8,
            "swa_head_dim": 12,
            "swa_num_attention_heads": 4,
            "swa_num_key_value_heads": 2,
        },
        "audio_config": {"mel_vocab_size": 8, "n_mel_bins": 6},
    },
    "internvl": {"text_config": {"model_type": "qwen3"}},
    "lfm2_vl": {"text_config": {"layer_types": ["conv", "full_attention"] * 2}},
    "llama4": {"vision_config": {"intermediate_size": 128}},
    "llava": {"text_config": EVEN},
    "llava_next": {"text_config": EVEN, "image_grid_pinpoints": [[56, 56]]},
    "llava_onevision": {"image_grid_pinpoints": [[56, 56]]},
    "minicpmv4_6": FIRST_LAYER,
    "minicpmv4_7": FIRST_LAYER,
    "minimax_m3_vl": {
        "projector_hidden_size": HIDDEN
    },  # published with both alike; mlx-vlm reads one
    "mistral3": {"vision_config": {**FOUR, "hidden_act": "silu"}},
    "mllama": {
        "text_config": {"cross_attention_layers": [1, 3]},
        "vision_config": {"intermediate_layers_indices": [0, 1], "vision_output_dim": 96},
    },
    "molmo2": {
        "low_res_image_start_token_id": 127,
        "frame_start_token_id": 125,
        "frame_end_token_id": 124,
        "vision_config": {"image_size": [28, 28], "num_position_embeddings": 4},
        "adapter_config": {
            "vision_feature_layer": [1, 0],
            "hidden_size": 32,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "intermediate_size": 56,
            "text_hidden_size": HIDDEN,
        },
    },
    "nemotron_h_omni": {"vit_hidden_size": 32, "vision_config": {"video_temporal_patch_size": 2}},
    "paddleocr_vl": {
        "tie_word_embeddings": False,
        "text_config": {
            "hidden_size": 1024,  # the projector of mlx-vlm's class gives no other
            "tie_word_embeddings": False,
            "rope_parameters": SECTIONED | {"mrope_section": [2, 3, 3]},
        },
    },
    "paligemma": {
        "projection_dim": HIDDEN,
        "text_config": EVEN,
        "vision_config": {"projection_dim": HIDDEN},
    },
    "pp_doclayout_v3": {  # mlx-vlm's class has fixed widths of the backbone, and of what it gives on
        **DETECTOR,
        "backbone_config": {
            "out_features": ["stage1", "stage2", "stage3", "stage4"],
            "stage_mid_channels": [8, 10, 12, 14],
            "stage_num_blocks": [1, 1, 2, 1],
            "stage_numb_of_layers": [2, 2, 2, 2],
        },
        "initializer_range": 1.0,  # of batch norms too, which would let next to nothing through
        "hidden_expansion": 0.125,
        "mask_feature_channels": [20, 28],
        "num_prototypes": 18,
        "global_pointer_head_size": 22,
    },
    "qwen2_vl": OUT,
    "qwen3_5": QWEN,
    "qwen3_5_moe": QWEN,
    "qwen3_omni_moe": {
        "thinker_config": {
            "text_config": {
                **TEXT,
                "rope_parameters": {**ROPE, "mrope_section": [4, 2, 2], "partial_rotary_factor": 1},
            },
            "vision_config": {**VISION, "deepstack_visual_indexes": [0]},
            "audio_config": {
                "num_mel_bins": 8,
                "encoder_layers": 2,
                "encoder_attention_heads": 2,
                "encoder_ffn_dim": 56,
                "d_model": 32,
                "output_dim": HIDDEN,
                "downsample_hidden_size": 12,
                "max_source_positions": 64,
            },
            **TOKENS,
            "audio_start_token_id": 124,
            "audio_end_token_id": 125,
        },
        "talker_config": {
            "text_config": {
                **SPOKEN,
                "num_experts": 6,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 20,
                "shared_expert_intermediate_size": 28,
            },
            "code_predictor_config": {**SPOKEN, "num_code_groups": 3},
            "num_code_groups": 3,
            "thinker_hidden_size": HIDDEN,
            "accept_hidden_layer": 1,
            "spatial_merge_size": 2,  # of the class of transformers itself, which does not list it
        },
        "code2wav_config": {
            **SPOKEN,
            "hidden_size": 32,
            "num_quantizers": 3,
            "upsample_rates": [2, 3],
            "upsampling_ratios": [2],
            "decoder_dim": 32,
        },
    },
    "qwen4_exp": {
        "text_config": {
            "rope_parameters": ROPE,
            "layer_types": LINEAR,
            "hc_lowrank": 12,
            "ple_layer_ids": [3],
            "ple_embed_dim": 40,
            "heads_per_ngram": 2,
            "ngram_vocab_size_base": 60,
            "make_ngram_vocab_size_divisible_by": 8,
            "split_ngram_parts": 2,
            "indexer_n_heads": 16,
            "indexer_kv_heads": 1,
            "indexer_head_dim": 16,
            "indexer_budget": 32,
            "indexer_compress_ratio": 4,
        },
    },
    "rt_detr_v2": {
        **DETECTOR,
        "backbone_config": {
            "embedding_size": 20,
            "hidden_sizes": [16, 24, 28, 36],
            "depths": [1, 2, 1, 1],
            "out_indices": [2, 3, 4],
        },
        "encoder_in_channels": [24, 28, 36],
        "decoder_in_channels": [40, 40, 40],
        "encoder_hidden_dim": 40,
    },
    "sam3": detecting(HIDDEN, 6),  # of fewer layers none moves a box to an edge
    "sam3_video": {
        "image_size": 56,
        "detector_config": FOLLOWING,
        "tracker_config": {
            "vision_config": FOLLOWING["vision_config"],
            "prompt_encoder_config": {"patch_size": 7},
            "mask_decoder_config": {"mlp_dim": 72},
            "memory_attention_num_layers": 2,
            "memory_attention_feed_forward_hidden_size": 80,
            "memory_fuser_intermediate_dim": 56,
        },
    },
    "siglip": {"text_config": {"projection_size": 32}},
    "step3p7": {"text_config": STEP},
    "smolvlm": {"text_config": EVEN, "vision_config": FOUR},
    "unlimited_ocr": {
        "text_config": {"num_key_value_heads": 4},  # published with as many as heads
        "vision_config": {
            "sam_config": {
                "hidden_size": 32,
                "output_channels": 24,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "image_size": 256,
                "global_attn_indexes": [1],
                "window_size": 8,
                "mlp_dim": 56,
                "downsample_channels": [28, 36],
            },
            "encoder_config": {
                "hidden_size": 36,
                "intermediate_size": 56,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "image_size": 28,
            },
        },
    },
}
