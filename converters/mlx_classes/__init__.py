"""MLX classes for families that no MLX library has: one file each, in the manner of mlx-examples.

They read what ``weighbridge convert torch-to-mlx`` writes, take what transformers' processors give,
and return a dict with the names of transformers' outputs. None of them knows a map.
"""

from __future__ import annotations

from typing import Final

# Model type -> the file here with its class, ``Model``, and its configuration, ``ModelArgs``.
FILES: Final = {
    "clip": "clip",
    "clip_text_model": "clip",
    "clip_vision_model": "clip",
    "convnext": "convnext",
    "resnet": "resnet",
    "siglip_vision_model": "siglip",
    "swin": "swin",
    "t5": "t5",
    "vit": "vit",
    "wav2vec2": "wav2vec2",
    "whisper": "whisper",
}
