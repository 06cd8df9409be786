"""Small models of many families, with random weights of realistic gain.

At transformers' own 0.02 a layer hardly matters: here matrices have a standard deviation of
1.5 / sqrt(fan-in), and every norm and bias is perturbed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

GAIN: Final = 1.5


class Sizes(NamedTuple):
    """A class of transformers, its configuration's class, and the sizes."""

    model: str
    config: str
    sizes: Mapping[str, Any]


TEXT: Final = {
    "vocab_size": 61,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 96,
}
CAUSAL: Final = TEXT | {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GROUPED: Final = CAUSAL | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
GEMMA2: Final = GROUPED | {"query_pre_attn_scalar": 8, "sliding_window": 32}
ENDS: Final = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 1)
IMAGES: Final = {"image_size": 12, "patch_size": 4}
VISION: Final = IMAGES | {
    "hidden_size": 20, "intermediate_size": 36, "num_hidden_layers": 1, "num_attention_heads": 2
}  # fmt: skip
CLIP: Final = {
    "text_config": TEXT | {"bos_token_id": 59, "eos_token_id": 60},
    "vision_config": VISION,
    "projection_dim": 14,
}
T5: Final = {
    "vocab_size": 61, "d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 2, "num_heads": 4,
    "num_decoder_layers": 2, "relative_attention_num_buckets": 8,
}  # fmt: skip
WHISPER: Final = {
    "vocab_size": 61, "d_model": 24, "encoder_layers": 1, "decoder_layers": 2,
    "encoder_attention_heads": 3, "decoder_attention_heads": 3, "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 36, "num_mel_bins": 8, "max_source_positions": 16,
    "max_target_positions": 26, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 3, "suppress_tokens": None, "begin_suppress_tokens": None,
}  # fmt: skip
DEEPSEEK: Final = CAUSAL | {
    "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 12, "kv_lora_rank": 10,
    "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 6, "moe_intermediate_size": 20,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
    "first_k_dense_replace": 1, "n_shared_experts": 1,
}  # fmt: skip
STAGES: Final = {"hidden_sizes": [12, 20], "depths": [1, 2]}
MODELS: Final[Mapping[str, Sizes]] = {
    "BERT": Sizes("BertModel", "BertConfig", TEXT),
    "ModernBERT": Sizes(
        "ModernBertModel", "ModernBertConfig",
        TEXT | {"num_attention_heads": 3, "num_hidden_layers": 4, "pad_token_id": 0} | ENDS,
    ),
    "T5": Sizes("T5ForConditionalGeneration", "T5Config", T5),
    "T5 encoder": Sizes("T5EncoderModel", "T5Config", T5),
    "GPT-2": Sizes(
        "GPT2LMHeadModel", "GPT2Config",
        {"vocab_size": 61, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 96,
         "bos_token_id": 1, "eos_token_id": 2},
    ),
    "Llama": Sizes("LlamaForCausalLM", "LlamaConfig", GROUPED),
    "Qwen3": Sizes("Qwen3ForCausalLM", "Qwen3Config", GROUPED),
    "Gemma": Sizes("GemmaForCausalLM", "GemmaConfig", GROUPED),
    "Gemma 2": Sizes("Gemma2ForCausalLM", "Gemma2Config", GEMMA2),
    "Gemma 3": Sizes("Gemma3ForCausalLM", "Gemma3TextConfig", GEMMA2),
    "ViT": Sizes("ViTModel", "ViTConfig", VISION),
    "CLIP": Sizes("CLIPModel", "CLIPConfig", CLIP),
    "Whisper": Sizes("WhisperModel", "WhisperConfig", WHISPER),
    "ResNet": Sizes(
        "ResNetModel", "ResNetConfig",
        STAGES | {"embedding_size": 12, "layer_type": "basic"},
    ),
}  # fmt: skip

# Those that are tried as Core ML packages and Core AI assets besides.
MORE: Final[Mapping[str, Sizes]] = {
    "RoBERTa": Sizes("RobertaModel", "RobertaConfig", TEXT | ENDS | {"pad_token_id": 0}),
    "DistilBERT": Sizes(
        "DistilBertModel", "DistilBertConfig",
        {"vocab_size": 61, "dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 40,
         "max_position_embeddings": 96},
    ),
    "Qwen2": Sizes("Qwen2ForCausalLM", "Qwen2Config", GROUPED),
    "Mistral": Sizes("MistralForCausalLM", "MistralConfig", GROUPED),
    "Phi-3": Sizes("Phi3ForCausalLM", "Phi3Config", CAUSAL | {"num_attention_heads": 4}),
    "Mixtral": Sizes(
        "MixtralForCausalLM", "MixtralConfig", GROUPED | {"num_local_experts": 4}
    ),
    "Qwen3-MoE": Sizes(
        "Qwen3MoeForCausalLM", "Qwen3MoeConfig",
        GROUPED | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20},
    ),
    "ConvNeXt": Sizes(
        "ConvNextModel", "ConvNextConfig",
        {"hidden_sizes": [12, 20], "depths": [1, 2], "num_stages": 2, "image_size": 32},
    ),
    "wav2vec2": Sizes(
        "Wav2Vec2Model", "Wav2Vec2Config",
        {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
         "intermediate_size": 40, "conv_dim": (12, 12), "conv_stride": (5, 2),
         "conv_kernel": (10, 3), "num_feat_extract_layers": 2,
         "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2},
    ),
}  # fmt: skip

# Those that come after the first in every table.
PACKAGED: Final[Mapping[str, Sizes]] = {
    "DeepSeek V3": Sizes("DeepseekV3ForCausalLM", "DeepseekV3Config", DEEPSEEK),
    "Mamba": Sizes(
        "MambaForCausalLM", "MambaConfig",
        {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2, "state_size": 4,
         "time_step_rank": 3, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
    ),
}  # fmt: skip


def lively(module: Any, seed: int = 1) -> Any:
    """Give MODULE weights of realistic gain, in place: ``1.5 / sqrt(fan-in)``, vectors perturbed."""
    import torch

    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in module.state_dict(keep_vars=True).values():
            if not value.is_floating_point():
                continue
            drawn = torch.randn(value.shape, generator=noise)
            if value.ndim < 2:
                value.add_(
                    0.2 * (drawn.abs() if value.numel() and bool((value > 0).all()) else drawn)
                )
            else:
                value.copy_(drawn * GAIN / math.sqrt(value[0].numel()))
    return module.eval()


def make(name: str, folder: Path, **sizes: Any) -> Path:
    """Write the model NAME of a table above to FOLDER, with SIZES in place of its own; return FOLDER."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    row = {**MODELS, **MORE, **PACKAGED}[name]
    torch.manual_seed(0)
    config = getattr(transformers, row.config)(**{**row.sizes, **sizes})
    lively(getattr(transformers, row.model)(config)).save_pretrained(folder)
    return folder
