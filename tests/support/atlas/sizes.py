"""Sizes of the tiny checkpoints, as data: one table for all types, and what each type adds.

No two sizes that can meet in one tensor are equal, so a transposed or misplaced weight cannot fit
by accident. A key that a configuration class does not know is left out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

DROP = "(left to the class)"  # a value in OVERRIDES that takes a key of TEXT away

HIDDEN = 48
TEXT: dict[str, Any] = {
    "vocab_size": 136,
    "hidden_size": HIDDEN,
    "n_embd": HIDDEN,
    "d_model": HIDDEN,
    "dim_model_base": 24,
    "intermediate_size": 80,
    "ffn_hidden_size": 80,
    "num_hidden_layers": 4,
    "num_layers": 4,
    "n_layer": 4,
    "n_layers": 4,
    "num_attention_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "global_head_dim": 24,
    "max_position_embeddings": 256,
    "n_positions": 256,
    "n_ctx": 256,
    "sliding_window": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # experts
    "num_experts": 6,
    "num_local_experts": 6,
    "n_routed_experts": 6,
    "moe_num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_k": 2,
    "moe_topk": 2,
    "moe_intermediate_size": 20,
    "shared_expert_intermediate_size": 36,
    "moe_shared_expert_intermediate_size": 36,
    "shared_intermediate_size": 36,
    "num_shared_experts": 1,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "num_dense_layers": 1,
    "decoder_sparse_step": 1,
    # latent attention
    "kv_lora_rank": 20,
    "q_lora_rank": 28,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 14,
    # Of few heads none scores a key, after the relu, and which of equal keys is chosen nobody says.
    "index_n_heads": 16,
    "index_head_dim": 16,
    "index_topk": 64,
    # state spaces and linear attention
    "state_size": 10,
    "mamba_d_state": 10,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 18,
    "linear_value_head_dim": 22,
    "hidden_size_per_layer_input": 10,
    "vocab_size_per_layer_input": 136,
}
VISION: dict[str, Any] = {
    "hidden_size": 32,
    "embed_dim": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_layers": 2,
    "depth": 2,
    "num_global_layers": 1,
    "num_attention_heads": 2,
    "num_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "global_head_dim": 16,
    "num_channels": 3,
    "in_channels": 3,
    "patch_size": 14,
    "image_size": 28,
    "window_size": 28,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "fullatt_block_indexes": [1],
    "deepstack_visual_indexes": [0, 1],
    "num_position_embeddings": 16,
    "position_embedding_size": 16,
    "out_hidden_size": HIDDEN,
    "vision_output_dim": HIDDEN,
    "mm_embed_dim": 36,
    "mm_posemb_size": 16,
    "output_proj_dims": HIDDEN,
    "projector_input_dim": 44,
    "projector_output_dim": 44,
}
WRAPPER: dict[str, Any] = {"out_hidden_size": 52, "projector_hidden_size": 44}
AUDIO: dict[str, Any] = {
    "hidden_size": 32,
    "audio_embed_dim": 28,
    "output_proj_dims": HIDDEN,
    "subsampling_conv_channels": [12, 8],
    "conf_num_hidden_layers": 2,
    "conf_num_attention_heads": 2,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}

HALF = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
LINEAR = ["linear_attention", "full_attention"] * 2
SLIDING = ["sliding_attention", "full_attention"] * 2
CONV = ["conv", "full_attention"] * 2
# One latent serves all heads: the number of key heads is the number of heads, and the class takes
# head_dim from qk_rope_head_dim.
# The head size that mlx-lm computes where its class reads none: hidden size by heads.
EVEN = {"head_dim": 12}
HEADS = {"head_dim": 16}
LATENT = {"head_dim": DROP, "num_key_value_heads": 4}
MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 12,
    "mamba_d_state": 10,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 16,
}
NEMOTRON_H = {
    "layers_block_type": ["linear_attention", "full_attention", "mlp", "moe"],
    "mamba_num_heads": 8,
    "mamba_head_dim": 12,
    "ssm_state_size": 10,
    "n_groups": 2,
    "chunk_size": 16,
    "use_mamba_kernels": False,
}

# What a type needs on top of the tables, or instead of them.
OVERRIDES: dict[str, dict[str, Any]] = {
    "bailing_hybrid": {**LATENT, "head_dim": 18, "layer_types": LINEAR},
    "cohere2": {**EVEN, "layer_types": SLIDING},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
        "ffn_config": {"moe_num_experts": 6, "moe_top_k": 2},
    },
    "deepseek_v2": {
        **LATENT,
        "topk_method": "greedy",
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "beta_fast": 32,
            "beta_slow": 1,
        },
    },
    "deepseek_v3": LATENT,
    "deepseek_v32": LATENT,
    # Published with a head_dim that the configuration class does not list, and takes all the same.
    "dots1": HEADS,
    "ernie4_5_moe": HEADS,
    "exaone_moe": HEADS,
    "glm4_moe": HEADS,
    "qwen3_moe": HEADS,
    "exaone4": {**HEADS, "layer_types": SLIDING, "sliding_window_pattern": "LG"},
    "falcon_h1": {
        **MAMBA,
        "head_dim": 16,
        "mamba_d_ssm": 96,
        "embedding_multiplier": 2.5,
        "lm_head_multiplier": 0.75,
        "key_multiplier": 1.25,
        "attention_in_multiplier": 1.125,
        "attention_out_multiplier": 0.875,
        "ssm_in_multiplier": 1.375,
        "ssm_out_multiplier": 0.625,
        "ssm_multipliers": [1.1, 0.9, 1.2, 0.8, 1.3],
        "mlp_multipliers": [0.7, 1.4],
    },
    "gemma2": {"layer_types": SLIDING},
    "gemma3": {"text_config": {"layer_types": SLIDING}},
    "gemma3_text": {"layer_types": SLIDING},
    "gemma4": {"vision_config": {}, "audio_config": {}},
    "gemma4_unified": {"vision_config": {}, "audio_config": {}},
    "gemma3n_text": {
        "num_hidden_layers": 6,
        "num_kv_shared_layers": 2,
        "layer_types": SLIDING + SLIDING[:2],
        "laurel_rank": 11,
    },
    "glm4_moe_lite": LATENT,
    "glm_moe_dsa": LATENT,
    "gpt2": {"n_inner": 192},  # mlx-lm reads no other than four times the hidden size
    "gpt_bigcode": {"n_inner": 192},
    "gpt_neox": {"intermediate_size": 192, "rope_parameters": HALF},
    "gpt_oss": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0},
        "layer_types": SLIDING,
    },
    "gptj": {"n_inner": 192, "rotary_dim": 8},
    "granitemoehybrid": {**MAMBA, "layer_types": LINEAR},
    "helium": EVEN,
    "internlm3": EVEN,
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "mamba_dt_rank": 4,
        "use_mamba_kernels": False,
    },
    "kimi_k25": {
        "tie_word_embeddings": False,
        "text_config": {**LATENT, "tie_word_embeddings": False},
    },
    "kimi_linear": {
        **LATENT,
        "q_lora_rank": None,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "linear_head_dim": 18,
        "linear_num_heads": 4,
    },
    "laguna": {"layer_types": SLIDING},
    "lfm2": {"layer_types": CONV, "block_auto_adjust_ff_dim": False},
    "lfm2_moe": {"layer_types": CONV},
    "llama4": {
        "text_config": {
            "intermediate_size_mlp": 56,
            "num_experts_per_tok": 1,  # mlx-lm asserts it; all published checkpoints have it
            "interleave_moe_layer_step": 2,
        }
    },
    # mlx-lm has MobileLLM-R1 under this name: the same classes without experts.
    "llama4_text": {
        "intermediate_size_mlp": 56,
        "moe_layers": [],
        "interleave_moe_layer_step": 0,
        "no_rope_layers": [1] * 4,
        "tie_word_embeddings": True,
    },
    "longcat_flash": {
        **LATENT,
        "head_dim": 8,
        "zero_expert_num": 2,
        "expert_ffn_hidden_size": 20,
        "num_layers": 2,
    },
    "mamba2": {"num_heads": 8, "head_dim": 12, "n_groups": 2, "chunk_size": 16},
    "mellum": {"layer_types": SLIDING},
    "mimo_v2_flash": {
        "layer_types": SLIDING,
        "rope_parameters": {
            "full_attention": {**HALF, "rope_theta": 5000000.0},
            "sliding_attention": HALF,
        },
    },
    "minicpm3": {**LATENT, "v_head_dim": 12},  # mlx-lm computes it: hidden size by heads
    "minimax_m3_vl": {
        "text_config": {
            "dense_intermediate_size": 56,
            "rotary_dim": 8,
            "rope_parameters": {**HALF, "rope_theta": 5000000.0},
        }
    },
    "mistral4": LATENT,
    "mixtral": EVEN,
    "muse_glimmer": {"vision_config": {"pos_emb_height": 3, "pos_emb_width": 5}},
    "muse_spark": {
        "text_config": {"moe_hidden_size": 44},
        "vision_config": {"pos_emb_height": 4, "pos_emb_width": 4},  # mlx-lm: squares only
        "audio_config": {
            "num_hidden_layers": 2,
            "patch_sizes": [4, 3],
            "hidden_sizes": [16, 24],
            "depths": [1, 1],
            "out_hidden_size": HIDDEN,
        },
    },
    "nemotron_h": NEMOTRON_H,
    "phimoe": {"attention_bias": True, "lm_head_bias": True},
    "qwen2_5_vl": {
        "text_config": {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e6,
                "mrope_section": [2, 2, 2],
            }
        }
    },
    "qwen2_vl": {
        "text_config": {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e6,
                "mrope_section": [2, 2, 2],
            }
        }
    },
    "recurrent_gemma": {
        **EVEN,
        "num_key_value_heads": 1,
        "lru_width": HIDDEN,
        "attention_window_size": 64,
        "block_types": ["recurrent", "attention"],
    },
    "step3p7": {
        "text_config": {
            "layer_types": SLIDING,
            "mlp_layer_types": ["dense"] + ["sparse"] * 3,
            "share_expert_dim": 36,
            "sliding_window": 64,
        }
    },
    "stablelm": {"rope_parameters": HALF},
}


# Layers that embedding models have behind the transformer, in folders of their own: shapes by folder.
BEHIND: dict[str, dict[str, tuple[int, int]]] = {
    "gemma3_text": {"2_Dense": (4 * HIDDEN, HIDDEN), "3_Dense": (HIDDEN, 4 * HIDDEN)},
    "lfm2": {"1_Dense": (128, HIDDEN)},
}


class Borrowed(NamedTuple):
    """How a type gets its language model where transformers has no class that builds it alone."""

    donor: str  # the model type that is built instead
    drop: tuple[str, ...] = ()  # prefixes of the donor's tensors that this type does not have
    prefix: tuple[str, str] = ("", "")  # of the remaining tensors: the donor's, and this type's
    part: str = ""  # this type's configuration is this part of the donor's
    wrap: str = ""  # or holds the donor's under this key


BORROWED = {
    # Its vision tower wants timm, which nothing here installs; mlx-lm leaves it out anyway.
    "gemma3n": Borrowed(
        "gemma3n_text", prefix=("model.", "model.language_model."), wrap="text_config"
    ),
    # transformers has the class as the language model of its successor, and saves these names.
    "step3p5": Borrowed("step3p7", drop=("vision_model.", "vit_large_"), part="text_config"),
}
