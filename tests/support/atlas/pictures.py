"""What towers are given: pictures and sound beside the text, as processors of transformers give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from weighbridge.tests.support.atlas import logits

Arrays = dict[str, npt.NDArray[Any]]
BEFORE = 4  # tokens of text before a picture
SIZES = (28, 28)


def drawn(*shape: int) -> npt.NDArray[np.float32]:
    """Return a picture of SHAPE: smooth in both directions, with noise."""
    noise = np.random.default_rng(7)
    rows, columns = np.mgrid[0 : shape[-2], 0 : shape[-1]]
    waves = np.sin(rows / 3.0) + np.cos(columns / 2.0)
    return (waves + 0.5 * noise.normal(size=shape)).astype(np.float32)


def plain(config: Any) -> Arrays:
    """Return one picture, channels first."""
    size = config.vision_config.image_size
    height, width = (size, size) if isinstance(size, int) else size
    return {"pixel_values": drawn(1, 3, height, width)}


def sized(config: Any) -> Arrays:
    """Return one picture and the size that it had."""
    found = plain(config)
    return {**found, "image_sizes": np.array([found["pixel_values"].shape[-2:]])}


def several(config: Any) -> Arrays:
    """Return one picture in a list of pictures."""
    return {"pixel_values": plain(config)["pixel_values"][None]}


def masked(config: Any) -> Arrays:
    """Return one picture in a list, and which of its pixels are there."""
    found = several(config)["pixel_values"]
    return {
        "pixel_values": found,
        "pixel_attention_mask": np.ones((*found.shape[:2], *found.shape[-2:]), np.int64),
    }


def tiled(config: Any) -> Arrays:
    """Return a picture as a small whole and its tiles, and the size that it had."""
    size = config.vision_config.image_size
    return {
        "pixel_values": drawn(1, 5, 3, size, size),
        "image_sizes": np.array([[2 * size, 2 * size]]),
    }


def patches(config: Any) -> Arrays:
    """Return the patches of a picture in rows, and how many of them lie along each axis."""
    vision = config.vision_config
    depth = getattr(vision, "temporal_patch_size", 1)
    count = 3 * depth * vision.patch_size**2
    grid = np.array([[1, 4, 6]])
    return {"pixel_values": drawn(int(grid.prod()), count), "image_grid_thw": grid}


ROWS: dict[str, Callable[[Any], Arrays]] = {
    **dict.fromkeys(
        (
            "qwen2_vl",
            "qwen2_5_vl",
            "qwen3_vl",
            "qwen3_vl_moe",
            "qwen3_5",
            "qwen3_5_moe",
            "qwen4_exp",
        ),
        patches,
    ),
    **dict.fromkeys(("glm4v", "glm4v_moe", "glm_ocr", "paddleocr_vl", "hunyuan_vl"), patches),
    **dict.fromkeys(("mistral3",), sized),
    **dict.fromkeys(("idefics2", "idefics3", "smolvlm"), masked),
    **dict.fromkeys(("llava_next", "llava_onevision", "granite4_vision"), tiled),
}


def image_token(config: Any) -> int:
    """Return the id that stands for a part of a picture."""
    found = [getattr(config, key, None) for key in ("image_token_id", "image_token_index")]
    return next(it for it in found if isinstance(it, int))


def seen(kind: str, model: Any) -> Arrays:
    """Return what the torch MODEL of KIND is given: token ids, and a picture among them."""
    import torch

    visual = ROWS.get(kind, plain)(model.config)
    tensors = {name: torch.from_numpy(value) for name, value in visual.items()}
    with torch.no_grad():
        found = model.float().get_image_features(**tensors)
    count = rows_of(getattr(found, "pooler_output", found))
    words = logits.tokens((1, 12))
    picture = np.full((1, count), image_token(model.config))
    ids = np.concatenate([words[:, :BEFORE], picture, words[:, BEFORE:]], axis=1)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), **visual}


def rows_of(found: Any) -> int:
    """Return how many tokens the features FOUND stand for."""
    if isinstance(found, (list, tuple)):
        return sum(rows_of(it) for it in found)
    return int(np.prod(found.shape[:-1]))


def reference(model: Any, given: Arrays) -> logits.Reference:
    """Run the torch MODEL on what it is GIVEN, in float32, then in float64; MODEL stays in float64."""
    import torch

    tensors = {name: torch.from_numpy(value) for name, value in given.items()}
    results = []
    for dtype in (torch.float32, torch.float64):
        model.to(dtype)
        cast = {k: v.to(dtype) if v.is_floating_point() else v for k, v in tensors.items()}
        with torch.no_grad():
            results.append(np.asarray(model(**cast, use_cache=False).logits.numpy(), np.float64))
    return logits.Reference(*results)


def native(model: Any, given: Mapping[str, npt.NDArray[Any]]) -> logits.Logits:
    """Run an mlx-vlm MODEL as its generation does: embeddings first, then the language model, with a cache."""
    import mlx.core as mx
    from mlx_vlm.models.cache import make_prompt_cache

    arrays = {name: mx.array(value) for name, value in given.items()}
    ids, mask = arrays.pop("input_ids"), arrays.pop("attention_mask", None)
    pixels = arrays.pop("pixel_values", None)
    found = model.get_input_embeddings(ids, pixels, mask=mask, **arrays)
    more = {k: v for k, v in found.to_dict().items() if k != "inputs_embeds" and v is not None}
    out = model.language_model(
        ids,
        inputs_embeds=found.inputs_embeds,
        cache=make_prompt_cache(model.language_model),
        **more,
    )
    return np.array(out.logits.astype(mx.float32)).astype(np.float64)
