"""Pictures in texts, as the processors of transformers give them to models that see.

Sizes come from a model's own configuration; how many tokens stand for a picture is the source's word.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from ...converters.models import Port, Signature
from ...converters.values import Array
from .probes import Probe

Arrays = dict[str, Array]
Features = Callable[[Arrays], int]
NAME: Final = "picture"
PIXELS: Final = "pixel_values"
GRID: Final = np.array([[1, 4, 6]])  # parts of a picture along time, height and width
MERGED: Final = 2  # of these along each axis that become one, where a configuration does not say
TILES: Final = 5  # a small whole picture and its four quarters
STANDS_FOR: Final = ("_token_id", "_token_index")  # how the names of special tokens end
BEFORE: Final = 4  # tokens of text before a picture
FRAMES: Final = (  # tokens between which a picture stands, where a configuration names them
    ("vision_start_token_id", "vision_end_token_id"),
    ("image_start_token_id", "image_end_token_id"),
)


def drawn(*shape: int) -> Array:
    """Return a picture of SHAPE: smooth in both directions, with noise."""
    rows, columns = np.mgrid[0 : shape[-2], 0 : shape[-1]]
    noise = np.random.default_rng(7).normal(size=shape)
    return np.asarray(np.sin(rows / 3.0) + np.cos(columns / 2.0) + 0.5 * noise, np.float32)


def plain(vision: Any) -> Arrays:
    """Return one picture, channels first."""
    size = vision.image_size
    return {PIXELS: drawn(1, 3, *((size, size) if isinstance(size, int) else size))}


def sized(vision: Any) -> Arrays:
    """Return one picture, and the size that it had."""
    found = plain(vision)
    return {**found, "image_sizes": np.array([found[PIXELS].shape[-2:]])}


def masked(vision: Any) -> Arrays:
    """Return one picture in a list, and which of its pixels are there."""
    found = plain(vision)[PIXELS][None]
    mask = np.ones((*found.shape[:2], *found.shape[-2:]), np.int64)
    return {PIXELS: found, "pixel_attention_mask": mask}


def tiled(vision: Any) -> Arrays:
    """Return a picture as a small whole and its tiles, and the size that it had."""
    size = vision.image_size
    pixels = drawn(1, TILES, 3, size, size)
    return {PIXELS: pixels, "image_sizes": np.array([[2 * size, 2 * size]])}


def flat(vision: Any) -> Arrays:
    """Return the patches of a picture in rows, how many lie along each axis, and which are there."""
    count = int(GRID.prod())
    return {
        PIXELS: drawn(1, count, vision.num_channels * vision.patch_size**2),
        "spatial_shapes": GRID[:, 1:],
        "pixel_attention_mask": np.ones((1, count), np.int64),
    }


def patches(vision: Any) -> Arrays:
    """Return the patches of a picture in rows, and how many of them lie along each axis."""
    depth = getattr(vision, "temporal_patch_size", 1)
    width = 3 * depth * vision.patch_size**2
    grid = beyond_a_window(vision)
    return {PIXELS: drawn(int(grid.prod()), width), "image_grid_thw": grid}


def gridded(vision: Any) -> Arrays:
    """Return the patches of a picture, channels first, and how many of them lie along each axis."""
    size, count = vision.patch_size, int(GRID.prod())
    return {PIXELS: drawn(count, 3, size, size), "image_grid_thw": GRID}


def beyond_a_window(vision: Any) -> Array:
    """Return how many parts of a picture lie along each axis, more than a window of attention has.

    >>> from types import SimpleNamespace
    >>> beyond_a_window(SimpleNamespace(patch_size=14, window_size=112)).tolist()
    [[1, 12, 14]]
    """
    window = getattr(vision, "window_size", 0) // vision.patch_size
    merged = getattr(vision, "spatial_merge_size", MERGED)
    return np.array([[1, window + 2 * merged, window + 3 * merged]])


# Model type -> what makes a picture for it. Others are not run: how theirs are given is not known here.
PICTURES: Final[Mapping[str, Callable[[Any], Arrays]]] = {
    **dict.fromkeys(("aya_vision", "internvl", "llava", "gemma3", "paligemma", "step3p7"), plain),
    **dict.fromkeys(("glm_ocr", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"), patches),
    **dict.fromkeys(("idefics3", "smolvlm"), masked),
    "lfm2_vl": flat,
    "paddleocr_vl": gridded,
    **dict.fromkeys(("llava_next", "llava_onevision"), tiled),
    "mistral3": sized,
}
# What a processor calls the array that tells parts of a picture from words.
KINDS: Final[Mapping[str, str]] = {
    **{kind: "mm_token_type_ids" for kind, make in PICTURES.items() if make in (patches, gridded)},
    **dict.fromkeys(("gemma3", "paligemma"), "token_type_ids"),
}
# Types whose texts begin with a picture; 0 marks what it may see, which is all of a prompt.
FIRST: Final = frozenset({"paligemma"})


def with_picture(config: Any, text: Array, count: Features) -> Probe:
    """Return the ids TEXT, ``(1, tokens)``, with a picture in it.

    Args:
        config: of transformers, of a type in ``PICTURES``.
        text: token ids.
        count: says how many tokens stand for given pixels.
    """
    pixels = PICTURES[config.model_type](config.vision_config)
    token = image_token(config)
    frame = next((it for it in FRAMES if hasattr(config, it[0])), ())
    begin, end = (frame[:1], frame[1:]) if frame else ((), ())
    middle = [
        *(np.array([[getattr(config, it)]]) for it in begin),
        np.full((1, count(pixels)), token),
        *(np.array([[getattr(config, it)]]) for it in end),
    ]
    special = [value for name, value in vars(config).items() if name.endswith(STANDS_FOR)]
    words = text[~np.isin(text, [it for it in special if isinstance(it, int)])][None]
    first = config.model_type in FIRST
    before = 0 if first else BEFORE
    ids = np.concatenate([words[:, :before], *middle, words[:, before:]], axis=1).astype(np.int64)
    marks = ((ids == token) & (not first)).astype(np.int64)
    kinds = {KINDS[config.model_type]: marks} if config.model_type in KINDS else {}
    return Probe(NAME, {"input_ids": ids, "attention_mask": np.ones_like(ids), **kinds, **pixels})


def image_token(config: Any) -> int:
    """Return the id that stands for a part of a picture."""
    found = (getattr(config, key, None) for key in ("image_token_id", "image_token_index"))
    return next(it for it in found if isinstance(it, int))


def tokens_of(features: Any) -> int:
    """Return how many tokens the FEATURES of pictures stand for, a tensor or several."""
    if isinstance(features, list | tuple):
        return sum(tokens_of(it) for it in features)
    return int(np.prod(features.shape[:-1]))


def mirrored(probe: Probe) -> Probe:
    """Return PROBE with another picture of the same size."""
    turned = np.ascontiguousarray(probe.inputs[PIXELS][..., ::-1])
    return probe._replace(inputs={**probe.inputs, PIXELS: turned})


def fitted(runner: Any, probe: Probe) -> Any:
    """Return RUNNER so that it takes all that PROBE has."""
    other = copy.copy(runner)
    other.signature = signature_with(runner.signature, probe)
    return other


def signature_with(signature: Signature, probe: Probe) -> Signature:
    """Return SIGNATURE with a port for each input that PROBE has besides."""
    known = {it.name for it in signature.inputs}
    more = [
        Port(name, str(array.dtype), array.shape, "pixels" if name == PIXELS else NAME)
        for name, array in probe.inputs.items()
        if name not in known
    ]
    return replace(signature, inputs=(*signature.inputs, *more))
