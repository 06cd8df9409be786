"""What a GGUF file and a configuration both say of how positions turn the heads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from ...values import Array
from ..file import GgufFile

Config = Mapping[str, Any]
FREQUENCIES: Final = "rope_freqs.weight"  # what llama.cpp divides the frequencies by
HEADS: Final = ("head_dim", "global_head_dim", "hidden_size_per_head", "kv_channels")
PARTS: Final = ("partial_rotary_factor", "rotary_pct", "rope_pct", "rotary_emb_fraction")
COUNTS: Final = ("rotary_dim", "qk_rope_head_dim")
SCALING: Final = (
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
)
ALL_OF_THEM: Final = (
    "proportional"  # the type that turns a part by frequencies of 0, not by a count
)
NEAR: Final = 1e-4  # relative, of the divisors, which are float32


def rotation_differences(file: GgufFile, config: Config) -> Iterator[str]:
    """Yield where FILE turns other numbers of each head than CONFIG says, or by other angles, in words."""
    name = f"{file.architecture}.rope.dimension_count"
    own, expected = file.value(name), rotated(file, config)
    stated = "" if own else ", which then is every one"
    if expected and (own or expected.isdisjoint(heads(file, config))) and own not in expected:
        count = " or ".join(map(str, sorted(expected)))
        yield f"{name} is {own or 'not there'}{stated}, config.json turns {count} numbers of each head"
    yield from divisor_differences(file, list(sections(config)))


def rotated(file: GgufFile, config: Config) -> set[int]:
    """Return how many numbers of each head may be rotated by CONFIG; empty where it does not say."""
    found = {value for it in sections(config) for key in COUNTS if (value := it.get(key))}
    whole = heads(file, config)
    shares = {value for it in sections(config) for key in PARTS if (value := it.get(key))}
    if any(it.get("rope_type") == ALL_OF_THEM for it in sections(config)):
        shares.add(1.0)
    if not all(isinstance(it, int | float) for it in (*found, *shares)):
        return set()  # one a layer
    if not found or shares:
        found |= {int(size * share) for size in whole for share in shares or {1.0}}
    return (
        found
        if any("rope" in str(key) or key in PARTS for it in sections(config) for key in it)
        else set()
    )


def heads(file: GgufFile, config: Config) -> set[int]:
    """Return the sizes that heads of CONFIG may have, by FILE too."""
    found = {file.sized("attention.key_length")}
    for it in sections(config):
        size, count = it.get("hidden_size", it.get("n_embd")), it.get("num_attention_heads")
        named = {it[key] for key in HEADS if it.get(key)}
        whole = isinstance(size, int) and isinstance(count, int) and count
        found |= named or ({size // count} if whole else set())
    return {it for it in found if isinstance(it, int) and it}


def divisor_differences(file: GgufFile, parts: list[Config]) -> Iterator[str]:
    """Yield where the divisors of frequencies in FILE are not those of the configuration's PARTS."""
    scaled = next((it for it in parts if it.get("rope_type", it.get("type")) == "llama3"), None)
    there = FREQUENCIES in file.tensors
    if scaled is None:
        if there and not any(it.get("rope_type") == ALL_OF_THEM for it in parts):
            yield f"{FREQUENCIES} is there, and config.json has no scaling that makes it"
    elif not there:
        yield f"{FREQUENCIES} is not there, config.json has a scaling of type llama3"
    elif scaled.keys() >= set(SCALING):
        own = file.rows(FREQUENCIES, slice(0, 1)).reshape(-1)
        base = next((it["rope_theta"] for it in (scaled, *parts) if it.get("rope_theta")), 1e4)
        if not np.allclose(own, divisors(2 * own.size, base, scaled), rtol=NEAR):
            yield f"{FREQUENCIES} is not what the llama3 scaling of config.json makes"


def divisors(size: int, base: float, scaling: Config) -> Array:
    """Return what the llama3 SCALING divides each frequency by (``_compute_llama3_parameters``).

    Args:
        size: numbers of each head that are rotated.
        base: of the frequencies.
        scaling: ``factor``, ``low_freq_factor``, ``high_freq_factor`` and the length before.

    >>> scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    >>> divisors(4, 1e8, scaling | {"original_max_position_embeddings": 8192}).tolist()
    [1.0, 8.0]
    """
    factor, low, high, length = (scaling[key] for key in SCALING)
    turns = length * base ** -(np.arange(0, size, 2) / size) / (2 * math.pi)
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    found: Array = 1 / ((1 - smooth) / factor + smooth)
    return found


def sections(config: Config) -> Iterator[Config]:
    """Yield CONFIG and every section of it.

    >>> [sorted(it) for it in sections({"text_config": {"head_dim": 8}})]
    [['text_config'], ['head_dim']]
    """
    yield config
    for value in config.values():
        if isinstance(value, Mapping):
            yield from sections(value)
