"""Towers: parts of a model for images and sound, and the MLX library whose class has them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ...errors import BadInputError
from ..libraries import packages
from ..libraries.finding import module_of
from ..libraries.packages import PACKAGES
from .library_family import INNER, is_bare

if TYPE_CHECKING:
    from .model import Model

Config = Mapping[str, Any]
NO_PART: Final = frozenset({"quantization_config", "generation_config", "per_layer_config"})
# A component of a tensor's name that begins so belongs to a tower.
TOWER: Final = re.compile(
    r"(^|\.)(model_|embed_)?(vision|visual|audio|image|video|vit|sam|sound|speech|talker|code2wav)"
)
TOWERS_FIRST: Final = ("mlx-vlm", "mlx-embeddings", "mlx-lm")
BARE_FIRST: Final = ("mlx-embeddings", "mlx-vlm", "mlx-lm")


def parts_of(config: Config) -> Iterator[tuple[str, Config]]:
    """Yield the configurations of parts other than the text model in CONFIG, by their keys.

    >>> list(parts_of({"text_config": {}, "vision_config": {"depth": 2}, "vocab_size": 9}))
    [('vision_config', {'depth': 2})]
    """
    for key, value in config.items():
        if not key.endswith("_config") or not isinstance(value, Mapping) or key in NO_PART:
            continue
        if key in INNER:
            yield from parts_of(value)
        elif value:
            yield key, value


def tower_names(names: Iterable[str]) -> set[str]:
    """Return those of NAMES that are of a tower.

    >>> tower_names(["model.visual.blocks.0.norm1.weight", "model.norm.weight"])
    {'model.visual.blocks.0.norm1.weight'}
    >>> tower_names(["talker.codec_head.weight", "thinker.model.norm.weight"])
    {'talker.codec_head.weight'}
    """
    return {name for name in names if TOWER.search(name)}


def absent(model: Model) -> list[str]:
    """Return what is to be said of MODEL where its configuration names a tower and it has no weights of one."""
    named = sorted(key for key, _ in parts_of(model.config) if TOWER.search(key))
    if not named or tower_names(model.checkpoint.headers):
        return []
    return [
        f"config.json names {' and '.join(named)}, and no weights of it are here: the rest alone is written"
    ]


def library_with_towers(config: Config) -> str | None:
    """Return the library whose class reads CONFIG, towers too; ``None`` where no library has one.

    mlx-lm's classes of such types leave the towers out, so it comes last. A class without a head is
    one of mlx-embeddings first.

    >>> library_with_towers({"model_type": "gemma3"})
    'mlx-vlm'
    """
    order = BARE_FIRST if is_bare(config) else TOWERS_FIRST
    return next((name for name in order if module_of(name, config)), None)


def read_by(model: Model, library: str) -> Model:
    """Return MODEL, to be read by the class of LIBRARY; raises as ``require_library``."""
    return replace(model, reader=require_library(library, model.config))


def require_library(name: str, config: Config) -> str:
    """Return NAME, the library that was asked for, if it is installed and has a class for CONFIG.

    Raises:
        BadInputError: it has none; those that have one are named.
        UnsupportedError: it is not installed.
    """
    packages.version(name)
    if module_of(name, config):
        return name
    others = [it for it in PACKAGES if module_of(it, config)]
    instead = f"; {' and '.join(others)} has one" if others else ""
    raise BadInputError(
        f"{name} {packages.version(name)} has no class for model_type"
        f" {config.get('model_type', '(none)')}{instead}. A newer {name} may have it"
    )
