"""Lengths at which a configuration says that a model computes otherwise: windows, chunks, scalings.

A text no longer than a window says nothing of the window, so a probe is longer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

# A probe is as much longer than a threshold as a window must move to leave tokens behind.
BEYOND: Final = 64
LAST: Final = (
    8  # positions that are compared at the end of such a probe, and on each side of a threshold
)
WINDOWS: Final = (
    "sliding_window",
    "sliding_window_size",
    "attention_window",
    "attention_window_size",
    "local_attention",
    "window_size",
    "attention_chunk_size",
    "chunk_size",
    "mamba_chunk_size",
    "index_topk",
    "relative_attention_max_distance",
    "floor_scale",
)
# Keys that say for which layers a window is; without such a layer it is read by nobody.
LAYERS: Final = {
    "sliding_window": "sliding_attention",
    "sliding_window_size": "sliding_attention",
    "local_attention": "sliding_attention",
    "attention_chunk_size": "chunked_attention",
}
# Rotary scalings that change with the length of the text, by their kind.
LENGTHENED: Final = frozenset(("longrope", "dynamic", "su"))
BY_LENGTH: Final = "llama_4_scaling_beta"  # scales queries by their position


class Threshold(NamedTuple):
    """A length from which on a model computes otherwise.

    Attributes:
        key: of the configuration that names it, dotted.
        tokens: the length; a text of one token more is the first to show it.
    """

    key: str
    tokens: int

    def __str__(self) -> str:
        """Print as ``sliding_window 32``."""
        return f"{self.key} {self.tokens:,}"


def thresholds(config: Any) -> tuple[Threshold, ...]:
    """Return the lengths that CONFIG, transformers' object or a part of it, names, the shortest first.

    >>> from types import SimpleNamespace as Config
    >>> thresholds(Config(sliding_window=32, layer_types=["full_attention"]))
    ()
    >>> thresholds(Config(sliding_window=32, text_config=Config(chunk_size=8)))
    (Threshold(key='text_config.chunk_size', tokens=8), Threshold(key='sliding_window', tokens=32))
    """
    found = {it.tokens: it for it in [*named(config)][::-1]}
    return tuple(found[tokens] for tokens in sorted(found))


def named(config: Any, place: str = "") -> Iterator[Threshold]:
    """Yield every threshold of CONFIG, which lies at PLACE, and of its text part."""
    values: Mapping[str, Any] = vars(config)
    kinds = values.get("layer_types") or ()
    for key in WINDOWS:
        used = key not in LAYERS or not kinds or LAYERS[key] in kinds
        used = used and values.get(f"use_{key}") is not False
        for size in {*as_sizes(values.get(key))} if used else ():
            yield Threshold(place + key, size // 2 if key == "local_attention" else size)
    yield from scalings(values, place)
    if "text_config" in values:
        yield from named(values["text_config"], f"{place}text_config.")


def as_sizes(value: Any) -> list[int]:
    """Return the sizes of a setting, one or a list of them."""
    found = value if isinstance(value, list | tuple) else [value]
    return [it for it in found if isinstance(it, int) and not isinstance(it, bool) and it > 0]


def scalings(values: Mapping[str, Any], place: str) -> Iterator[Threshold]:
    """Yield the lengths at which a rotary scaling among VALUES changes."""
    whole = values.get("rope_parameters") or {}
    for rope in [whole, *(it for it in whole.values() if isinstance(it, Mapping))]:
        if rope.get("rope_type") in LENGTHENED or BY_LENGTH in rope:
            key = "original_max_position_embeddings"
            for size in as_sizes(rope.get(key, values.get("max_position_embeddings"))):
                yield Threshold(f"{place}rope_parameters.{key}", size)


def positions(crossed: Sequence[Threshold], length: int) -> tuple[int, ...]:
    """Return which of LENGTH positions are compared: those about each threshold, and the last.

    >>> positions([Threshold("sliding_window", 32)], 96)[:2], len(positions([], 96))
    ((24, 25), 8)
    """
    about = {near for it in crossed for near in range(it.tokens - LAST, it.tokens + LAST)}
    return tuple(
        sorted(near for near in about | {*range(length - LAST, length)} if 0 <= near < length)
    )


class Cost(NamedTuple):
    """What a run over a text costs, as far as the sizes of a model tell.

    Attributes:
        operations: multiplications and additions.
        memory: bytes of the attention of one layer, in float64.
    """

    operations: float
    memory: float


QUICK: Final = Cost(4e11, 2e9)
FULL: Final = Cost(4e12, 6e9)
BLOCK: Final = Cost(4e12, 2e9)  # for one block of a model


def cost(config: Any, parameters: int, tokens: int) -> Cost:
    """Return what one text of TOKENS costs a model with CONFIG and that many PARAMETERS."""
    part = vars(config).get("text_config", config)
    heads, width, layers = (
        largest(part, keys.split())
        for keys in (
            "num_attention_heads n_head",
            "hidden_size n_embd d_model",
            "num_hidden_layers n_layer",
        )
    )
    operations = 2.0 * parameters * tokens + 4.0 * layers * width * tokens**2
    return Cost(operations, 3 * 8.0 * heads * tokens**2)


def largest(config: Any, keys: Sequence[str]) -> int:
    """Return the largest size that CONFIG, or one of its layers, has under one of KEYS; 1 for none."""
    parts = config.per_layer_config if getattr(config, "is_heterogeneous", False) else [config]
    found = (as_sizes(getattr(it, key, None)) for it in parts for key in keys)
    return max(itertools.chain.from_iterable(found), default=1)


def affordable(config: Any, parameters: int, limit: int, *, quick: bool) -> tuple[Threshold, ...]:
    """Return the thresholds of CONFIG that a probe is to cross: those below LIMIT that cost no more.

    Args:
        config: transformers' object.
        parameters: of the whole model.
        limit: tokens that the model takes.
        quick: whether only a little time may be spent.
    """
    most = QUICK if quick else FULL
    return tuple(
        it
        for it in thresholds(config)
        if it.tokens + LAST <= limit
        and all(
            need <= allowed
            for need, allowed in zip(
                cost(config, parameters, min(it.tokens + BEYOND, limit)), most, strict=True
            )
        )
    )
