"""What towers are given: pictures and sound beside the text, as processors of transformers give them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from weighbridge.parity.probes import pictures as probes
from weighbridge.parity.probes.pictures import drawn, image_token
from weighbridge.tests.support.atlas import logits
from weighbridge.tests.support.atlas.tower_sizes import TOKENS

Arrays = dict[str, npt.NDArray[Any]]
BEFORE = 4  # tokens of text before a picture


def towered(make: Callable[[Any], Arrays]) -> Callable[[Any], Arrays]:
    """Return what makes a picture of a whole configuration as MAKE does of its tower's."""
    return lambda config: make(getattr(config, "vision_config", config))


gridded = towered(probes.gridded)


def still(config: Any) -> Arrays:
    """Return the patches of a picture in rows, one frame deep, and how many lie along each axis."""
    found = gridded(config)
    return {**found, "pixel_values": found["pixel_values"].reshape(24, -1)}


def patches(config: Any) -> Arrays:
    """Return the patches of a picture in rows, and how many of them lie along each axis."""
    vision = config.vision_config
    depth = getattr(vision, "temporal_patch_size", getattr(vision, "patch_temporal", 1))
    count = 3 * depth * vision.patch_size**2
    grid = np.array([[1, 4, 6]])
    return {"pixel_values": drawn(int(grid.prod()), count), "image_grid_thw": grid}


def counted(config: Any) -> Arrays:
    """Return the patches of a picture in rows, and how many of them lie along both of its axes."""
    size = config.vision_config.patch_size
    return {"pixel_values": drawn(24, 3 * size**2), "image_grid_hw": np.array([[4, 6]])}


def packed(config: Any) -> Arrays:
    """Return the patches of a picture side by side, and how many of them lie along both of its axes."""
    size = config.vision_config.patch_size
    return {"pixel_values": drawn(1, 3, size, 32 * size), "target_sizes": np.array([[4, 8]])}


def paired(config: Any) -> Arrays:
    """Return the patches of a picture, each twice along time, channels last."""
    vision = config.vision_config
    size, depth = vision.patch_size, vision.temporal_patch_size
    return {
        "pixel_values": drawn(6, depth, vision.num_channels, size, size).transpose(0, 1, 3, 4, 2)
    }


def placed(config: Any) -> Arrays:
    """Return the patches of a picture in rows, and the place of each."""
    vision = config.vision_config
    size = getattr(vision, "model_patch_size", None) or vision.patch_size
    rows, columns = np.mgrid[0:6, 0:6]
    places = np.stack([columns.ravel(), rows.ravel()], axis=-1)[None]
    return {"pixel_values": drawn(1, 36, 3 * size**2), "image_position_ids": places}


def halved(config: Any) -> Arrays:
    """Return a picture as a whole, and the halves of it side by side at a smaller size."""
    size = config.vision_config.sam_config.image_size
    return {
        "pixel_values": drawn(1, 3, size, size),
        "pixel_values_local": drawn(2, 3, size * 5 // 8, size * 5 // 8),
        "num_local_patches": np.array([2]),
        "patches_grid": np.array([[2, 1]]),
    }


# Types with patches in rows, whose positions follow the grid of a picture.
GRIDS = (
    *("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "qwen4_exp"),
    *("glm4v", "glm4v_moe", "glm_ocr", "paddleocr_vl", "hunyuan_vl"),
    *("minimax_m3_vl", "muse_glimmer", "muse_spark", "cohere_compass", "glm5_next"),
)
# What a processor calls the array that tells parts of a picture from words.
KINDS = {
    **dict.fromkeys(GRIDS, "mm_token_type_ids"),
    **dict.fromkeys(("minicpmv4_7", "gemma4", "diffusion_gemma"), "mm_token_type_ids"),
    "gemma3": "token_type_ids",
}
# A text and a picture go into these together, never one in the other.
PAIRS = frozenset({"siglip", "sam3"})
FIRST = frozenset({"florence2", "paligemma"})  # a picture is what a text of these begins with
FRAME = (
    "vision_start_token_id",
    "vision_end_token_id",
    "image_start_token_id",
    "image_end_token_id",
)
ROWS: dict[str, Callable[[Any], Arrays]] = {
    **dict.fromkeys((*GRIDS, "qwen3_omni_moe"), patches),
    **dict.fromkeys(("mistral3",), towered(probes.sized)),
    **dict.fromkeys(("hunyuan_vl",), still),
    **dict.fromkeys(("lfm2_vl",), towered(probes.flat)),
    **dict.fromkeys(("kimi_k25", "kimi_vl", "paddleocr_vl"), gridded),
    **dict.fromkeys(("minicpmv4_6", "minicpmv4_7"), packed),
    **dict.fromkeys(("nemotron_h_omni",), counted),
    **dict.fromkeys(("inkling_mm_model",), paired),
    **dict.fromkeys(("unlimited_ocr",), halved),
    **dict.fromkeys(("florence2",), lambda _: {"pixel_values": drawn(1, 3, 56, 56)}),
    **dict.fromkeys(("gemma4", "gemma4_unified", "diffusion_gemma"), placed),
    **dict.fromkeys(("idefics2", "idefics3", "smolvlm"), towered(probes.masked)),
    **dict.fromkeys(("llava_next", "llava_onevision", "granite4_vision"), towered(probes.tiled)),
}


def beside(config: Any) -> Arrays:
    """Return a text, one token of which stands for a picture that it looks at from there on.

    The picture is of two tiles, one above the other.
    """
    ids, size = with_picture(config, 1, BEFORE), config.vision_config.image_size
    tiles = np.array([[[1, 1, 0, 0]]])
    looks = np.zeros((1, ids.shape[1], 1, 4), np.int64)
    looks[:, BEFORE:] = tiles
    upright = config.vision_config.supported_aspect_ratios.index([2, 1]) + 1
    return {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "pixel_values": drawn(1, 1, 4, 3, size, size) * tiles[..., None, None, None],
        "aspect_ratio_ids": np.array([[upright]]),
        "aspect_ratio_mask": tiles,
        "cross_attention_mask": looks,
    }


def twice(config: Any) -> Arrays:
    """Return a text with a picture in two frames, small and whole; parts of it are pooled to a token."""
    words, part = logits.tokens((1, 12)), config.image_patch_id
    small, begin, end = (
        getattr(config, it)
        for it in ("low_res_image_start_token_id", "image_start_token_id", "image_end_token_id")
    )
    frames = np.array([[small, part, part, end, begin, part, part, end]])
    ids = np.concatenate([words[:, :BEFORE], frames, words[:, BEFORE:]], axis=1)
    kinds = np.zeros_like(ids)
    kinds[:, BEFORE : BEFORE + frames.shape[1]] = 1
    return {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "mm_token_type_ids": kinds,
        "pixel_values": drawn(2, 4, 3 * config.vision_config.patch_size**2),
        "image_token_pooling": np.array([[0, 1], [2, 3], [4, 5], [6, -1]]),
        "image_grids": np.array([[1, 2, 1, 2]]),
        "image_num_crops": np.array([2]),
    }


def described(config: Any) -> Arrays:
    """Return a picture, and a text with padding that says what to find in it.

    No boxes of such things: transformers cuts them out with torchvision, which need not be there.
    """
    ids = logits.tokens((1, 12))
    mask = np.ones_like(ids)
    mask[:, -3:] = 0
    return {"input_ids": ids, "attention_mask": mask, **probes.plain(config)}


# Types whose text has no token for each part of a picture alone.
WHOLE: dict[str, Callable[[Any], Arrays]] = {
    "mllama": beside,
    "molmo2": twice,
    **dict.fromkeys(("sam3", "sam3_video"), described),
}


def seen(kind: str, model: Any) -> Arrays:
    """Return what the torch MODEL of KIND is given: token ids, and a picture among them."""
    import torch

    if kind in WHOLE:
        return WHOLE[kind](model.config)

    visual = ROWS.get(kind, towered(probes.plain))(model.config)
    if "input_ids" not in inspect.signature(model.forward).parameters:
        return visual
    if kind in PAIRS:
        return {"input_ids": logits.tokens((1, 12)), **visual}
    tensors = as_tensors(visual)
    with torch.no_grad():
        model = model.float()
        sees = model if hasattr(model, "get_image_features") else model.model.encoder
        found = sees.get_image_features(**tensors)
    count = rows_of(features_of(found))
    ids = with_picture(model.config, count, 0 if kind in FIRST else BEFORE)
    parts = (ids == image_token(model.config)).astype(np.int64)
    kinds = text_kinds(kind, ids) | ({KINDS[kind]: parts} if kind in KINDS else {})
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), **kinds, **visual}


def as_tensors(given: Arrays) -> dict[str, Any]:
    """Return what is GIVEN as transformers takes it: counts are lists."""
    import torch

    return {
        name: value.tolist() if name == "num_local_patches" else torch.from_numpy(np.array(value))
        for name, value in given.items()
    }


def text_kinds(kind: str, ids: npt.NDArray[np.int64]) -> Arrays:
    """Return what a processor of KIND gives beside the IDS of a text, or what it generates in place."""
    if kind == "diffusion_gemma":
        return {"decoder_input_ids": np.roll(ids, 1, axis=1)}
    if kind == "florence2":
        start = np.full((len(ids), 1), 2)  # what an answer starts with, from config.json
        return {"decoder_input_ids": np.concatenate([start, logits.tokens((len(ids), 6))], axis=1)}
    return {"token_type_ids": np.zeros_like(ids)} if kind == "paligemma" else {}


def with_picture(config: Any, count: int, before: int) -> npt.NDArray[np.int64]:
    """Return the ids of a text in which COUNT tokens, after BEFORE others, stand for a picture.

    They are in a frame if CONFIG has one.
    """
    words = logits.tokens((1, 12))
    frame = [np.array([[getattr(config, it)]]) for it in FRAME if getattr(config, it, None)]
    picture = [*frame[:1], np.full((1, count), image_token(config)), *frame[1:2]]
    return np.concatenate([words[:, :before], *picture, words[:, before:]], axis=1)


def features_of(found: Any) -> Any:
    """Return what of the output FOUND of a tower takes the place of tokens."""
    if getattr(found, "pooler_output", None) is not None:
        return found.pooler_output
    if getattr(found, "last_hidden_state", None) is not None:
        return found.last_hidden_state
    [(_, features), *_] = getattr(found, "deepstack_features", [(0, found)])
    return features


def rows_of(found: Any) -> int:
    """Return how many tokens the features FOUND stand for."""
    if isinstance(found, (list, tuple)):
        return sum(rows_of(it) for it in found)
    return int(np.prod(found.shape[:-1]))


def as_named(model: Any, given: Arrays) -> Arrays:
    """Return what is GIVEN as the processor of an MLX MODEL's own library gives it."""
    kind = str(getattr(getattr(model, "config", None), "model_type", ""))
    if "image_grid_hw" in given:
        given = {**given, "pixel_values": of_patches(given)}
    key, change = OWN_NAMES.get(kind, ("", None))
    return {**given, **change(given)} if change and key in given else given


def canvas(given: Arrays) -> Arrays:
    """Return a picture as one, where one is GIVEN, and what is generated in place, by mlx-vlm's name."""
    whole = {"pixel_values": together(given)} if "pixel_values" in given else {}
    return {**whole, "canvas_ids": given["decoder_input_ids"]}


def cropped(given: Arrays) -> dict[str, Any]:
    """Return the parts of a picture that are GIVEN beside the whole, and where it is in the text."""
    return {
        "pixel_values": [given["pixel_values_local"], given["pixel_values"]],
        "images_spatial_crop": given["patches_grid"],
        "images_seq_mask": given["input_ids"] == TOKENS["image_token_id"],
    }


def channels_last(given: Arrays) -> Arrays:
    """Return the pictures GIVEN with their channels last."""
    return {"pixel_values": given["pixel_values"].transpose(0, 2, 3, 1)}


def bound(given: Arrays) -> Arrays:
    """Return the patches GIVEN as of one picture, and from where to where it is in the text."""
    places = np.flatnonzero(given["input_ids"][0] == TOKENS["image_token_id"])
    return {
        "tgt_sizes": given["target_sizes"][None],
        "image_bound": np.array([[[places[0], places[-1] + 1]]]),
        "pixel_values": given["pixel_values"][None],
    }


# By model type, what mlx-vlm's own processor makes of a picture, and the array that says there is one.
OWN_NAMES: dict[str, tuple[str, Callable[[Arrays], dict[str, Any]]]] = {
    "diffusion_gemma": ("decoder_input_ids", canvas),
    "hunyuan_vl": ("image_grid_thw", lambda it: {"position_ids": rows_and_columns(it)}),
    "kimi_k25": ("image_grid_thw", lambda it: {"image_grid_hws": it["image_grid_thw"][:, 1:]}),
    **dict.fromkeys(("minicpmv4_6", "minicpmv4_7"), ("target_sizes", bound)),
    "paddleocr_vl": ("pixel_values", lambda it: {"pixel_values": it["pixel_values"][None]}),
    **dict.fromkeys(("sam3", "sam3_video"), ("pixel_values", channels_last)),
    "unlimited_ocr": ("patches_grid", cropped),
}


def together(given: Arrays) -> npt.NDArray[np.float32]:
    """Return the picture that the patches of what is GIVEN are cut from, channels first."""
    columns, rows = given["image_position_ids"][0].max(0) + 1
    patches = given["pixel_values"].reshape(rows, columns, -1, 3)
    size = int(patches.shape[2] ** 0.5)
    cut = patches.reshape(rows, columns, size, size, 3).transpose(4, 0, 2, 1, 3)
    return np.ascontiguousarray(cut.reshape(1, 3, rows * size, columns * size))


def rows_and_columns(given: Arrays) -> npt.NDArray[np.int64]:
    """Return four positions of each token of what is GIVEN, columns and rows of its picture's among them."""
    height, width = given["image_grid_thw"][0, 1:] // 2
    ids = given["input_ids"]
    found = np.tile(np.arange(ids.shape[1]), (4, 1))
    first, places = (
        int(np.argmax(ids[0] == TOKENS["image_token_id"])) + 1,
        np.arange(height * (width + 1)),
    )
    parts = np.stack([places % (width + 1), places // (width + 1), 0 * places])
    found[1:, first : first + len(places)] = parts
    return found[None]


def of_patches(given: Arrays) -> npt.NDArray[Any]:
    """Return the picture whose patches, in rows, are GIVEN."""
    [(height, width)], rows = given["image_grid_hw"], given["pixel_values"]
    size = int((rows.shape[1] // 3) ** 0.5)
    parts = rows.reshape(height, width, 3, size, size).transpose(2, 0, 3, 1, 4)
    return parts.reshape(1, 3, height * size, width * size)


def another(given: Arrays) -> Arrays:
    """Return what is GIVEN with another picture of the same size."""
    return {**given, "pixel_values": given["pixel_values"][..., ::-1].copy()}
