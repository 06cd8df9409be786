"""Configurations of small models of families that no MLX library has.

No two sizes of a model are equal, nor kernels square, where the architecture lets us choose.
"""

from __future__ import annotations

T5 = {
    "vocab_size": 61,
    "d_model": 24,
    "d_kv": 7,
    "d_ff": 40,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 3,
    "relative_attention_num_buckets": 14,
}
CLIP_TEXT = {
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "max_position_embeddings": 11,
    "bos_token_id": 59,
    "eos_token_id": 60,
}
CLIP_VISION = {
    "hidden_size": 20,
    "intermediate_size": 36,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 12,
    "patch_size": 4,
}
WHISPER = {
    "vocab_size": 61,
    "num_mel_bins": 6,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "max_source_positions": 9,
    "max_target_positions": 13,
} | {f"{it}_token_id": 1 for it in ("pad", "bos", "eos", "decoder_start")}
VIT = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "image_size": (12, 8),
    "patch_size": (4, 2),
    "num_channels": 5,
}
WAV2VEC2 = {
    "vocab_size": 31,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "conv_dim": (10, 12),
    "conv_stride": (5, 2),
    "conv_kernel": (9, 3),
    "num_conv_pos_embeddings": 6,
    "num_conv_pos_embedding_groups": 2,
}
CODES = {"codevector_dim": 8, "proj_codevector_dim": 6, "num_codevectors_per_group": 5}
RESNET = {"embedding_size": 8, "hidden_sizes": [12, 20], "depths": [1, 2], "num_channels": 5}
SWIN = {
    "image_size": 48,
    "patch_size": 4,
    "embed_dim": 12,
    "depths": [2, 3],
    "num_heads": [2, 3],
    "window_size": 5,
    "num_channels": 5,
}
CONVNEXT = {
    "num_stages": 2,
    "hidden_sizes": [12, 20],
    "depths": [1, 2],
    "num_channels": 5,
    "image_size": 16,
    "patch_size": 3,
    "layer_scale_init_value": 0.5,
}
