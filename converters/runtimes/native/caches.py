"""What a module in MLX keeps of a text between calls, as generation with it makes it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from ..pieces import names_a_cache

if TYPE_CHECKING:
    import mlx.core as mx
    from mlx import nn

# Model types whose pixels mlx-vlm's processor gives with an axis that transformers' class adds itself.
STACKED: Final = frozenset({"paddleocr_vl"})
SEES: Final = "mlx_vlm"  # its generation calls the language model inside, with caches of its own
EMBEDS: Final = "mlx_embeddings"  # whose classes read a text at once, those made of mlx-vlm's too
Call = Callable[[Mapping[str, Any]], Any]


def taken(module: nn.Module) -> list[str]:
    """Return the parameters by which MODULE's call takes what was kept of a text."""
    return [it for it in inspect.signature(type(module).__call__).parameters if names_a_cache(it)]


def sees(module: nn.Module) -> bool:
    """Say whether MODULE is a class of mlx-vlm, which generates by its language model."""
    bases = type(module).__mro__  # one that reads its weights from disk is a class of ours below it
    rooms = {it.__module__.partition(".")[0] for it in bases}
    return SEES in rooms and EMBEDS not in rooms


def takes_pictures(module: nn.Module) -> bool:
    """Say whether MODULE is given a picture beside a text, in its call or as mlx-vlm generates."""
    return sees(module) or "pixel_values" in inspect.signature(type(module).__call__).parameters


def reason_unread(module: nn.Module) -> str:
    """Return why no cache can be made for MODULE although its call takes one; empty where it can, or takes none."""
    if not (names := taken(module)):
        return ""
    if sees(module):
        return reason_unseen(module)
    if "cache" not in names:
        return f"its call takes {names[0]}, which nobody here can make; call it cache"
    if not (hasattr(module, "make_cache") or hasattr(module, "layers")):
        return "its call takes cache, and it has neither make_cache nor layers to make one"
    return "" if find_spec("mlx_lm") else "mlx-lm, which makes caches, is not installed"


def reason_unseen(module: nn.Module) -> str:
    """Return why no cache can be made for MODULE of mlx-vlm; empty where it can."""
    if hasattr(module, "diffusion_prefill_cache"):
        return "it generates many tokens at once, from a draft of them"
    if answers(module):
        return "its encoder reads a text at once"
    lacks = [it for it in ("get_input_embeddings", "language_model") if not hasattr(module, it)]
    return f"its class has no {lacks[0]}, which generation calls" if lacks else ""


def answers(module: nn.Module) -> bool:
    """Say whether MODULE, of mlx-vlm, has a decoder that answers what its encoder read at once."""
    language = getattr(module, "language_model", None)
    if language is None:
        return False
    return "decoder_input_ids" in inspect.signature(type(language).__call__).parameters


def new_cache(module: nn.Module) -> list[Any]:
    """Return an empty cache for MODULE, or for the language model in it."""
    if sees(module):
        from mlx_vlm.models.cache import make_prompt_cache

        made: list[Any] = make_prompt_cache(module.language_model)
        return made
    from mlx_lm.models import cache

    kept: list[Any] = cache.make_prompt_cache(module)
    return kept


def with_cache(module: nn.Module, call: Call) -> Call:
    """Return what reads the next tokens of one text with MODULE, beginning with an empty cache.

    Args:
        module: takes a cache.
        call: calls it with inputs by name.
    """
    kept = new_cache(module)
    if not sees(module):
        return lambda feed: call({**feed, "cache": kept})
    calls = iter((module.get_input_embeddings,))
    return lambda feed: read_on(module, feed, kept, next(calls, None))


def read_on(
    module: nn.Module, feed: Mapping[str, mx.array], kept: list[Any], embed: Any | None
) -> Any:
    """Read the tokens of FEED with the language model in MODULE, as mlx-vlm's generation does.

    The beginning of a text goes through EMBED, which puts images between the words; ids come first.
    """
    (_, ids), *rest = feed.items()
    more = dict(rest)
    pixels, mask = more.pop("pixel_values", None), more.pop("attention_mask", None)
    answer = more.pop("decoder_input_ids", None)
    if pixels is not None and getattr(module.config, "model_type", "") in STACKED:
        pixels = pixels[None]
    found = embed(ids, pixels, mask=mask, **more).to_dict() if embed else {}
    given = {name: value for name, value in found.items() if value is not None}
    if answer is not None:
        return answered(module.language_model, answer, given, kept)
    return module.language_model(ids, cache=kept, **given)


def answered(language: Any, answer: mx.array, given: dict[str, Any], kept: list[Any]) -> Any:
    """Return what the decoder of LANGUAGE makes of ANSWER to the text GIVEN: token by token, as it generates.

    Several at once would see those behind them.
    """
    import mlx.core as mx

    given.pop("decoder_inputs_embeds", None)
    found = []
    for at in range(answer.shape[1]):
        token = answer[:, at : at + 1]
        made = language(cache=kept, decoder_input_ids=token, **given)
        given = {"encoder_outputs": made.encoder_outputs}
        found.append(made.logits)
    return SimpleNamespace(logits=mx.concatenate(found, axis=1))


def kinds(cache: list[Any]) -> str:
    """Return the classes in CACHE, each once, such as ``KVCache, RotatingKVCache``."""
    inner = [part for it in cache for part in getattr(it, "caches", (it,))]
    return ", ".join(sorted({type(it).__name__ for it in inner if it is not None}))
