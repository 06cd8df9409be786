"""Directories run by the libraries whose classes take more than text, and the same in transformers."""

from __future__ import annotations

import inspect
import runpy
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from weighbridge.tests.support.atlas import logits, pictures, videos

Arrays = Mapping[str, npt.NDArray[Any]]
PADDING = 3  # tokens
UNORDERED = -1e4  # what stands for no order: far below any other score
# What is compared of an output: the first of these that it has, several side by side.
OUTPUTS = (
    ("logits", "pred_boxes", "order_logits"),
    ("logits", "pred_boxes"),
    ("pred_logits", "pred_boxes", "pred_masks", "presence_logits"),
    ("pred_logits", "pred_boxes"),
    ("pred_masks",),
    ("last_hidden_state",),
    ("logits",),
    ("image_embeds", "text_embeds"),
)


def load(library: str, folder: Path) -> Any:
    """Return what LIBRARY's own loader, strict, makes of FOLDER."""
    if library == "mlx-vlm":
        from mlx_vlm.utils import load_model

        return load_model(folder)
    from mlx_embeddings import utils

    # SigLIP's size is read from the name of its repository, whatever config.json says.
    return utils.load_model(folder, path_to_repo="patch14-28", **mended(folder))


def mended(folder: Path) -> dict[str, Any]:
    """Return what mlx-embeddings' loader is told of the class that FOLDER has a file for, if it has one."""
    from mlx_embeddings import utils

    files = [*folder.glob("model_mlx_embeddings.py")]
    made = runpy.run_path(str(files[0])) if files else {}

    def classes(config: dict[str, Any]) -> tuple[Any, ...]:
        return made["Model"], made["ModelArgs"], *utils._get_classes(config)[2:]

    return {"get_model_classes": classes} if made else {}


def probes(library: str, kind: str, model: Any) -> Iterator[tuple[str, Arrays]]:
    """Yield what the torch MODEL of KIND is given, with the prefix of its figures in a row."""
    model = writing(model)
    reads = "input_ids" in inspect.signature(model.forward).parameters
    if reads and kind not in pictures.PAIRS:
        for name, shape in (("", logits.SHORT), ("long_", logits.LONG)):
            ids = logits.tokens(shape)
            beside = padded(ids) if library == "mlx-embeddings" else {}
            yield name, {"input_ids": ids, **pictures.text_kinds(kind, ids), **beside}
    if not reads or getattr(model.config, "vision_config", None) is not None:
        yield "seen_", pictures.seen(kind, model)
    if kind in videos.KINDS:
        yield "long_", videos.clicked(model.config)


def writing(model: Any) -> Any:
    """Return what of the torch MODEL writes: what says it aloud is beside that in some."""
    return getattr(model, "thinker", model)


def padded(ids: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[np.int64]]:
    """Return the mask of IDS, two texts, the first of them padded on the left, the other on the right."""
    mask = np.ones_like(ids)
    mask[0, :PADDING] = mask[1, -PADDING:] = 0
    return {"attention_mask": mask}


def reference(library: str, model: Any, given: Arrays) -> logits.Reference:
    """Run the torch MODEL on what it is GIVEN, in float32, then in float64; MODEL stays in float64."""
    import torch

    inner = runner(library, model, given)
    tensors = pictures.as_tensors(given)
    named = inspect.signature(getattr(inner, "forward", inner)).parameters
    plain = {"use_cache": False} if "use_cache" in named else {}

    def run(dtype: Any) -> logits.Logits:
        cast = {
            k: v.to(dtype) if torch.is_tensor(v) and v.is_floating_point() else v
            for k, v in tensors.items()
        }
        return compared(inner(**cast, **plain), lambda it: it.numpy(), given)

    found = logits.in_both(model, run)
    # The mask of a row of padding overflows in float64: then float32 is all there is.
    return found if np.isfinite(found.double).all() else found._replace(double=found.singles[0])


def runner(library: str, model: Any, given: Arrays) -> Callable[..., Any]:
    """Return what of the torch MODEL takes what is GIVEN and gives what the class of LIBRARY gives."""
    if "video" in given:
        return partial(videos.in_torch, model)
    model = writing(model)
    return (
        model.base_model if library == "mlx-embeddings" else getattr(model, "detector_model", model)
    )


def compared(found: Any, as_numpy: Callable[[Any], Any], given: Arrays) -> logits.Logits:
    """Return what is compared of the output FOUND, flat, padding of what was GIVEN left out."""
    outputs = outputs_of(found)
    parts = [np.asarray(as_numpy(it), np.float64) for it in outputs.values()]
    mask = given.get("attention_mask")
    if mask is not None and [*outputs] == ["last_hidden_state"]:
        parts = [part[mask.astype(bool)] for part in parts]
    return np.concatenate([scaled(part[~(part <= UNORDERED)]) for part in parts])


def outputs_of(found: Any) -> dict[str, Any]:
    """Return the arrays of the output FOUND that are compared, by name.

    Raises:
        ValueError: it has none of those that are known.
    """
    for names in OUTPUTS:
        parts = {name: getattr(found, name, None) for name in names}
        if all(it is not None for it in parts.values()):
            return parts
    raise ValueError(f"{type(found).__name__} has none of {OUTPUTS}")


def scaled(part: logits.Logits) -> logits.Logits:
    """Return PART by a power of two, so that its largest is below 1: none hides the errors of another."""
    return np.ldexp(part, -np.frexp(np.abs(part).max(initial=0))[1])


def native(model: Any, given: Arrays) -> logits.Logits:
    """Run an MLX MODEL on what it is GIVEN, as its library does."""
    import mlx.core as mx

    forward = ready(model, given)
    if "video" not in given and not generates(model):
        forward()  # what it keeps of one text must not change the next
    result = compared(forward(), lambda it: np.array(it.astype(mx.float32)), given)
    if "video" not in given and not np.isfinite(result).all():
        raise ValueError(f"{np.isnan(result).sum()} of {result.size} numbers are NaN")
    return result


def ready(model: Any, given: Arrays) -> Callable[[], Any]:
    """Return the forward of an MLX MODEL on what it is GIVEN, as its library runs it, not yet evaluated."""
    import mlx.core as mx

    arrays = {
        name: [mx.array(it) for it in value] if isinstance(value, list) else mx.array(value)
        for name, value in pictures.as_named(model, given).items()
    }
    if "video" in given:
        return lambda: videos.in_mlx(model, arrays)
    way = generated if generates(model) else by_place
    return lambda: way(model, dict(arrays))


def generates(model: Any) -> bool:
    """Say whether mlx-vlm generates with MODEL, token by token."""
    parts = hasattr(model, "language_model") and hasattr(model, "get_input_embeddings")
    parts = parts and not hasattr(model, "diffusion_prefill_cache")
    rooms = [it.__module__.partition(".")[0] for it in type(model).__mro__]
    return parts and "mlx_vlm" in rooms and "mlx_embeddings" not in rooms


def by_place(model: Any, arrays: dict[str, Any]) -> Any:
    """Return what MODEL makes of ARRAYS: ids by place where it calls them otherwise, pictures as it has them."""
    names = inspect.signature(type(model).__call__).parameters
    alone = "input_ids" not in arrays  # then channels come last
    first = [] if alone or "input_ids" in names else [arrays.pop("input_ids")]
    if alone:
        arrays["pixel_values"] = arrays["pixel_values"].transpose(0, 2, 3, 1)
    found = model(*first, **{name: value for name, value in arrays.items() if name in names})
    return SimpleNamespace(**found) if isinstance(found, dict) else found


def generated(model: Any, arrays: dict[str, Any]) -> Any:
    """Return what mlx-vlm's generation reads: embeddings first, then the language model, with a cache."""
    from mlx_vlm.models.cache import make_prompt_cache

    ids, mask = arrays.pop("input_ids"), arrays.pop("attention_mask", None)
    pixels = arrays.pop("pixel_values", None)
    found = model.get_input_embeddings(ids, pixels, mask=mask, **arrays).to_dict()
    given = {name: value for name, value in found.items() if value is not None}
    kept = make_prompt_cache(model.language_model)
    if "decoder_input_ids" in arrays:
        given.pop("decoder_inputs_embeds")
        return answered(model.language_model, arrays["decoder_input_ids"], given, kept)
    if pixels is None and pools(kept):  # pictures are read with the text around them
        return read_on(model.language_model, ids, kept)
    return model.language_model(ids, cache=kept, **given)


def answered(language: Any, ids: Any, given: dict[str, Any], kept: Any) -> Any:
    """Return what LANGUAGE makes of the IDS of an answer to what is GIVEN, one by one, with what it KEPT."""
    import mlx.core as mx

    found = [language(cache=kept, decoder_input_ids=ids[:, :1], **given)]
    states = {"encoder_outputs": found[0].encoder_outputs}
    for at in range(1, ids.shape[1]):
        part = ids[:, at : at + 1]
        found.append(language(cache=kept, decoder_input_ids=part, **states))
    return SimpleNamespace(logits=mx.concatenate([it.logits for it in found], axis=1))


def pools(cache: Any) -> bool:
    """Say whether CACHE keeps several tokens as one, which it may do otherwise when a text is read on."""
    inner = [part for it in cache for part in getattr(it, "caches", (it,))]
    return any(type(it).__name__ == "PoolingCache" for it in inner)


def read_on(language: Any, ids: Any, kept: Any) -> Any:
    """Return what LANGUAGE makes of IDS, the second half of them read one by one, with what it KEPT."""
    import mlx.core as mx

    half = ids.shape[1] // 2
    parts = [ids[:, :half], *(ids[:, at : at + 1] for at in range(half, ids.shape[1]))]
    found = [language(part, cache=kept).logits for part in parts]
    return SimpleNamespace(logits=mx.concatenate(found, axis=1))
