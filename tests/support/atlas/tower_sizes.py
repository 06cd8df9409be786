"""Sizes of towers, as data: what a type with pictures or sound needs on top of ``sizes.py``.

Pictures have to pass through: tokens that stand for them lie in the vocabulary, and what a tower gives
is as wide as the language model.
"""

from __future__ import annotations

from typing import Any

from weighbridge.tests.support.atlas.sizes import HIDDEN

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

OVERRIDES: dict[str, dict[str, Any]] = {
    "aya_vision": {"vision_config": FOUR},
    "gemma3": {"mm_tokens_per_image": 4, "vision_config": FOUR},
    "idefics3": {"vision_config": FOUR},
    "qwen2_vl": OUT,
    "smolvlm": {"vision_config": FOUR},
}
