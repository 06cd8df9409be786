"""A transformers config made into what an MLX class reads."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import MISSING, Field
from itertools import chain
from typing import Any

from ...errors import UnsupportedError
from ..libraries import Target
from ..libraries.defaults import config_object
from ..libraries.target import is_required
from .notes import notes
from .readers import Reader, place, readers
from .rows import CORRECTED, GENERIC, SPECIFIC
from .source import Source
from .translation import ABSENT, Translation, difference


def to_mlx(config: Mapping[str, Any], target: Target) -> Translation:
    """Return CONFIG with every key that the class TARGET would else miss or default otherwise.

    The keys that are there stay, so transformers still reads the result. What a key is follows from
    transformers' own config class, which knows the defaults that ``config.json`` does not write.

    Raises:
        BadInputError: transformers' config class does not take the config.
        UnsupportedError: the library or a package it needs is not installed.
    """
    result = copy.deepcopy(dict(config))
    whole = Source(config, known(config))
    for reader in readers(target, config):
        fill(place(result, reader.part), whole, reader)
        if reader.part in CLOSED.get(f"{target.library} {target.model_type}", ()):
            part = result[reader.part]
            result[reader.part] = {key: part[key] for key in part if key in reader.fields}
    if f"{target.library} {target.model_type}" in FLAT:
        result = {**result["text_config"], **result} if result.get("text_config") else result
    return difference(config, result, notes(target, whole))


def known(config: Mapping[str, Any]) -> Any:
    """Return transformers' config object, ``None`` where it does not know the model type."""
    try:
        return config_object(config)
    except UnsupportedError:
        return None


def fill(own: dict[str, Any], config: Source, reader: Reader) -> None:
    """Put into OWN, its part of the whole CONFIG, what READER would miss."""
    whole = config.part(reader.part.rpartition(".")[0])
    source = config.part(reader.part)
    for key, field in reader.fields.items():
        value = tied(whole) if reader.part and key == TIED else missing(key, field, source, reader)
        if reader.part and source.find(key) is ABSENT and whole.find(key) != default(field):
            value = whole.find(key) if value is ABSENT else value  # beside the part in transformers
        if value is not ABSENT:
            own[key] = value
    for key, row in chain.from_iterable(CORRECTED.get(n, {}).items() for n in reader.names):
        if key in own and source.known is not None:
            own[key] = row(source)


# Classes that read the text part beside the whole model's keys, as transformers 4 wrote it.
FLAT = frozenset({"mlx-vlm qwen2_vl", "mlx-vlm qwen2_5_vl", "mlx-vlm paddleocr_vl"})
# Parts whose classes take no other key than their own.
CLOSED = {
    "mlx-embeddings siglip": frozenset({"text_config", "vision_config"}),
    "mlx-vlm glm_ocr": frozenset({"vision_config"}),
}
TIED = "tie_word_embeddings"


def tied(whole: Source) -> Any:
    """Return whether the head is tied: as the whole model has it, whatever the text part has."""
    return whole.find(TIED)


def missing(key: str, field: Field[Any], source: Source, reader: Reader) -> Any:
    """Return the value that KEY needs, ``ABSENT`` where the class reads the right one by itself."""
    if source.written.get(key) is not None:
        return ABSENT
    value = derived(key, source, reader)
    if value is ABSENT or (value is None and key in source.written):
        return ABSENT
    return value if is_required(field) or value != default(field) else ABSENT


def derived(key: str, source: Source, reader: Reader) -> Any:
    """Return what KEY is, by the first row that there is: of the type, the file, or of all."""
    for table in [*(SPECIFIC.get(name, {}) for name in reader.names), GENERIC]:
        if key in table:
            return table[key](source)
    return source.find(key)


def default(field: Field[Any]) -> Any:
    """Return the default of the dataclass FIELD, ``ABSENT`` where it has none."""
    if field.default is not MISSING:
        return field.default
    return ABSENT if field.default_factory is MISSING else field.default_factory()
