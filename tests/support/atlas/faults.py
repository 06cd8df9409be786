"""Where the two libraries disagree without us, as data: what differs, who says so, what mends it.

`upstream.py` measures each: transformers saves a tiny checkpoint, mlx-lm's own loader reads it with
the config keys that it wants, and nothing of Weighbridge takes part. With the change that is named
here both agree, or the loader takes the files; a test keeps all of that true.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Fault:
    """One disagreement of mlx-lm 0.32.2, mlx-vlm 0.7.10 or mlx-embeddings 0.1.0 with transformers 5.23."""

    kind: str  # model type
    side: str  # "mlx-lm", "transformers" or "both": which one departs from the published model
    why: str
    mlx: dict[str, Any] = field(
        default_factory=dict
    )  # config keys mlx-lm wants on top of the config that was saved
    own: dict[str, Any] = field(default_factory=dict)  # a configuration that shows it plainly
    agree: dict[str, Any] = field(
        default_factory=dict
    )  # a change of the transformers configuration with which both agree
    mend: str = ""  # or a function of mends.py that changes mlx-lm's class so that both agree
    raises: str = ""  # what mlx-lm says when it loads or runs the checkpoint
    long: bool = False  # whether it takes a text past a threshold of the configuration to show
    layouts: tuple[str, ...] = ("saved", "hub")  # the layouts of the checkpoint that show it
    library: str = "mlx-lm"  # whose class it is
    here: str = "nothing"  # what Weighbridge does about one of another library than mlx-lm


TANH = {"rope_type": "default", "rope_theta": 10000.0}
WIDE = {"sliding_window": 4096}  # wider than the text is long
WINDOWLESS = "past sliding_window tokens the class attends to those that transformers leaves out"
SAVED = ("saved",)  # the hub has another layout

KIMI_LINEAR: dict[str, Any] = {
    "rope_theta": 10000.0,
    "model_max_length": 256,
    "num_experts": 6,
    "num_experts_per_token": 2,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "mla_use_nope": True,
    "head_dim": 18,
    "linear_attn_config": {
        "kda_layers": [1, 2, 3],
        "full_attn_layers": [4],
        "num_heads": 4,
        "head_dim": 18,
        "short_conv_kernel_size": 4,
    },
}
LONGCAT_FLASH: dict[str, Any] = {
    "rope_theta": 10000000.0,
    "attention_method": "MLA",
    "zero_expert_type": "identity",
    "mla_scale_q_lora": True,
    "mla_scale_kv_lora": True,
}

FAULTS = (
    Fault(
        "ernie4_5_moe",
        "mlx-lm",
        "sanitize drops e_score_correction_bias, which transformers adds before it picks the"
        " experts (Ernie4_5_MoeTopKRouter)",
        mlx={"rope_theta": 500000.0},
        mend="without_correction_bias",
    ),
    Fault(
        "falcon_h1",
        "mlx-lm",
        "sanitize folds attention_in_multiplier into q_proj and k_proj but not v_proj, and folds"
        " key_multiplier only into 'key_proj', a name that no checkpoint has",
        mlx={"head_dim": 16, "rope_theta": 10000.0},
        agree={"key_multiplier": 1.0, "attention_in_multiplier": 1.0},
    ),
    Fault(
        "gemma",
        "mlx-lm",
        "the MLP uses the exact gelu; every published Gemma means the tanh approximation, which"
        " transformers forces even where the config says gelu",
        mend="tanh_gelu",
    ),
    Fault(
        "gemma3",
        "mlx-lm",
        "the scale of the embedding, sqrt(hidden_size), is rounded to bfloat16 whatever the dtype"
        " of the weights; transformers rounds it only where they are bfloat16",
        mlx={
            "vocab_size": 136,
            "text_config": {
                "tie_word_embeddings": True,
                "sliding_window_pattern": 2,
                "rope_theta": 1000000.0,
                "rope_local_base_freq": 10000.0,
            },
        },
        agree={"text_config": {"hidden_size": 64}},  # its root is exact in bfloat16
    ),
    Fault(
        "gemma3_text",
        "mlx-lm",
        "as gemma3: the scale of the embedding is rounded to bfloat16",
        mlx={
            "sliding_window_pattern": 2,
            "rope_theta": 1000000.0,
            "rope_local_base_freq": 10000.0,
        },
        agree={"hidden_size": 64},
    ),
    Fault(
        "glm",
        "mlx-lm",
        "attention rotates the whole head; partial_rotary_factor (0.5 in every published GLM-4)"
        " is not read",
        agree={"rope_parameters": {**TANH, "partial_rotary_factor": 1.0}},
    ),
    Fault(
        "glm4_moe_lite",
        "both",
        "the norms of the two latents: transformers takes its default epsilon 1e-6, mlx-lm"
        " rms_norm_eps (1e-5 in the published config)",
        mlx={"rope_theta": 10000.0},
        agree={"rms_norm_eps": 1e-6},
        long=True,  # it takes more tokens to be told from rounding
    ),
    Fault(
        "gpt_bigcode",
        "mlx-lm",
        "activation_function is not read: always the exact gelu; the config's default, and"
        " StarCoder's, is gelu_pytorch_tanh",
        agree={"activation_function": "gelu"},
    ),
    Fault(
        "gpt_neox",
        "mlx-lm",
        "hidden_act is not read: always the tanh approximation; the config's default, and"
        " Pythia's, is the exact gelu",
        mlx={"rotary_emb_base": 10000, "rotary_pct": 0.5},
        agree={"hidden_act": "gelu_new"},
    ),
    Fault(
        "jamba",
        "mlx-lm",
        "the router normalises over the experts it picked; transformers (and AI21's code) takes"
        " the softmax over all of them and does not normalise again",
        agree={"num_experts_per_tok": 6},  # all of them: both are the same
    ),
    Fault(
        "llama4",
        "mlx-lm",
        "the norm of queries and keys has a fixed epsilon of 1e-6 instead of rms_norm_eps (1e-5)",
        mlx={"text_config": {"rope_theta": 500000.0, "rope_scaling": None}},
        own={"text_config": {"rms_norm_eps": 1e-3}},  # the published 1e-5 is near the bar
        agree={"text_config": {"rms_norm_eps": 1e-6}},
    ),
    Fault(
        "mamba2",
        "mlx-lm",
        "the gated norm runs over all channels at once; transformers and mamba-ssm norm each of"
        " the n_groups groups (Codestral-Mamba has 8)",
        mlx={"intermediate_size": 96, "time_step_rank": 4},
        mend="grouped_norm",
    ),
    Fault(
        "minicpm3",
        "mlx-lm",
        "with tied embeddings the hidden states are not divided by hidden_size / dim_model_base;"
        " the norms of the two latents have epsilon 1e-5 (nn.RMSNorm's default), not 1e-6",
        mlx={
            "rope_theta": 10000.0,
            "rope_scaling": {
                "type": "longrope",
                "short_factor": [1.0] * 4,
                "long_factor": [1.0] * 4,
                "original_max_position_embeddings": 256,
            },
        },
        mend="scaled_and_precise",
    ),
    Fault(
        "nemotron_h",
        "both",
        "the time step is clamped from below at config.time_step_min in transformers, at"
        " config.time_step_limit[0] in mlx-lm (and in NVIDIA's code)",
        agree={"time_step_min": 1e-30},
    ),
    Fault(
        "recurrent_gemma",
        "both",
        "the norms of the blocks have a fixed epsilon of 1e-5 in mlx-lm, rms_norm_eps (1e-6) in"
        " transformers; the scale of the embedding is rounded to bfloat16 in transformers",
        mlx={"rope_theta": 10000.0},
        agree={"rms_norm_eps": 1e-5, "hidden_size": 64, "lru_width": 64, "head_dim": 16},
    ),
    Fault(
        "kimi_linear",
        "both",
        "the norm of the latent: transformers takes its default epsilon 1e-6, mlx-lm rms_norm_eps"
        " (1e-5 in the published config)",
        mlx={**KIMI_LINEAR, "rms_norm_eps": 1e-3},
        own={"rms_norm_eps": 1e-3},  # with the published 1e-5 it is within the bar
        mend="precise_latents",
        layouts=("hub",),
    ),
    Fault(
        "longcat_flash",
        "mlx-lm",
        "the norms of the two latents have epsilon 1e-5 (nn.RMSNorm's default), not 1e-6",
        mlx={**LONGCAT_FLASH, "rms_norm_eps": 1.0},
        own={"rms_norm_eps": 1.0},  # small latents: with the published 1e-5 it is within the bar
        mend="precise_latents",
        layouts=("hub",),
    ),
    Fault(
        "starcoder2",
        "mlx-lm",
        "hidden_act is not read: always the exact gelu; the config's default, and StarCoder 2's,"
        f" is gelu_pytorch_tanh; {WINDOWLESS}",
        mlx={"rope_theta": 10000.0},
        agree={"hidden_act": "gelu", **WIDE},
        long=True,
    ),
    *(
        Fault(kind, "mlx-lm", WINDOWLESS, agree=WIDE, long=True)
        for kind in ("gemma2", "ministral3", "mistral", "mixtral", "phi3")
    ),
    Fault("phimoe", "mlx-lm", WINDOWLESS, mlx={"rope_theta": 1000000.0}, agree=WIDE, long=True),
    Fault(
        "mistral3",
        "mlx-lm",
        WINDOWLESS,
        mlx={"text_config": {"tie_word_embeddings": True}},
        agree={"text_config": WIDE},
        long=True,
    ),
    # Checkpoints that mlx-lm's loader refuses.
    Fault(
        "bailing_hybrid",
        "transformers",
        "save_pretrained names the output projection of the linear layers dense, as in the layers"
        " with full attention; the published files have o_proj there",
        mlx={
            "architectures": ["BailingMoeV3ForCausalLM"],
            "layer_group_size": 2,
            "head_dim": 18,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "q_lora_rank": None,
            "max_position_embeddings": 256,
            "moe_shared_expert_intermediate_size": 20,
        },
        raises="model.layers.0.attention.dense.weight",
        layouts=SAVED,
    ),
    Fault(
        "bitnet",
        "mlx-lm",
        "the class knows packed weights with a scale alone; save_pretrained of an unpacked model,"
        " as the one published in bfloat16 is, has neither",
        raises="self_attn.k_proj.weight_scale",
        layouts=SAVED,
    ),
    Fault(
        "bitnet",
        "mlx-lm",
        "the class calls a Metal kernel that has no other version, so it runs on a Mac alone",
        raises="[metal_kernel] No Metal back-end.",
        layouts=("hub",),
    ),
    Fault(
        "gemma3n",
        "transformers",
        "layers that share keys and values have projections in the published files and in mlx-lm's"
        " class; save_pretrained of transformers 5 leaves them out",
        mlx={"text_config": {"rope_local_base_freq": 10000.0, "rope_theta": 1000000.0}},
        raises="layers.4.self_attn.k_proj.weight",
        layouts=SAVED,
    ),
    Fault(
        "gpt2",
        "mlx-lm",
        "sanitize puts 'model.' before names that already have the prefix 'transformer.'; the"
        " published files have none, save_pretrained writes it",
        raises="model.transformer.",
        mlx={"n_ctx": 256},
        layouts=SAVED,
    ),
    Fault(
        "gpt_oss",
        "mlx-lm",
        "unquantized experts: sanitize names them experts.gate_proj, the class wants"
        " experts.gate_proj.weight; the published files are in mxfp4",
        mlx={"rope_theta": 150000.0, "rope_scaling": None},
        raises="parameters not in model",
        layouts=SAVED,
    ),
    Fault(
        "kimi_k25",
        "transformers",
        "save_pretrained reverses the renaming of the vision tower's 'blocks' in the language model"
        " too: language_model.model.blocks where the published files have layers",
        mlx={"text_config": {"rope_theta": 10000.0}},
        raises="language_model.model.blocks.0",
        layouts=SAVED,
    ),
    Fault(
        "kimi_linear",
        "transformers",
        "save_pretrained puts the dense layer's MLP under block_sparse_moe; the published files"
        " have it under mlp",
        mlx=KIMI_LINEAR,
        raises="model.layers.0.block_sparse_moe.down_proj.weight",
        layouts=SAVED,
    ),
    Fault(
        "longcat_flash",
        "transformers",
        "gate_up_proj has room for the zero experts too, which have no weights in the published"
        " files: those do not load, and save_pretrained writes experts that nobody reads",
        mlx=LONGCAT_FLASH,
        raises="model.layers.0.mlp.experts.6",
        layouts=SAVED,
    ),
    Fault(
        "minimax",
        "both",
        "two architectures under one name: MiniMax-M2 in mlx-lm, MiniMax-Text-01 with lightning"
        " attention in transformers",
        mlx={"rope_theta": 1000000.0, "rotary_dim": 16, "shared_intermediate_size": 0},
        raises="self_attn.qkv_proj.weight",
    ),
    Fault(
        "muse_glimmer",
        "mlx-lm",
        "sanitize drops vision_tower only without the prefix 'model.', which save_pretrained writes",
        raises="model.vision_tower.layers.0",
        layouts=SAVED,
    ),
    Fault(
        "muse_spark",
        "mlx-lm",
        "the class calls a Metal kernel that has no other version, so it runs on a Mac alone",
        raises="[metal_kernel] No Metal back-end.",
    ),
    Fault(
        "nanochat",
        "mlx-lm",
        "the class has the names of the original code (transformer.h.0.attn.c_q) and no sanitize;"
        " transformers has model.layers.0.self_attn.q_proj",
        raises="model.embed_tokens.weight",
    ),
    Fault(
        "olmo",
        "mlx-lm",
        "the class reads the files of the package hf_olmo, not those of transformers, and importing it"
        " without that package ends the process",
        raises="SystemExit: 1",
    ),
    Fault(
        "olmo_hybrid",
        "mlx-lm",
        "the class wants input_layernorm and post_attention_layernorm in the linear layers;"
        " save_pretrained writes the published names, attention_layer_norm and"
        " feedforward_layer_norm",
        raises="model.layers.0.attention_layer_norm.weight",
    ),
    Fault(
        "qwen2_moe",
        "mlx-lm",
        "norm_topk_prob is not read: the weights of the chosen experts are never made to sum to one",
        mlx={"rope_theta": 10000.0},
        own={"norm_topk_prob": True},
        agree={"norm_topk_prob": False},
    ),
    Fault(
        "qwen3_5_moe",
        "transformers",
        "save_pretrained splits the experts, which the published files have stacked; mlx-lm reads"
        " the published ones",
        mlx={"vocab_size": 136},
        raises="mlp.experts.0.down_proj.weight",
        layouts=SAVED,
    ),
    Fault(
        "qwen3_vl_moe",
        "transformers",
        "save_pretrained leaves the experts as they are at run time, transposed against the"
        " published files; mlx-lm reads the published ones",
        mlx={
            "vocab_size": 136,
            "text_config": {
                "rope_theta": 500000.0,
                "num_experts": 6,
                "norm_topk_prob": True,
                "tie_word_embeddings": False,
            },
        },
        raises="but received shape",
        layouts=SAVED,
    ),
)
