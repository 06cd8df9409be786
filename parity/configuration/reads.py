"""Which keys of a transformers configuration the code of a model reads while it is built and run."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

from ...converters.models.signature import LENGTHS

# Class of the configuration, or of the part of it, and key -> modules whose code reads it.
Reads = dict[tuple[type, str], set[str]]
# Files of transformers that compute; others read keys to save, load or generate.
COMPUTING: Final = re.compile(
    r"transformers\.(models\..*\.modeling_|masking_utils|modeling_rope_utils|modeling_layers"
    r"|activations|integrations\.)"
)
# Keys that change nothing in evaluation: they are about training, memory and what is returned.
HARMLESS: Final = re.compile(
    r"_.*|use_cache|output_.*|return_.*|.*drop.*|.*initializer.*|.*init_std|gradient_checkpointing"
    r"|pretraining_tp|chunk_size_feed_forward|.*loss.*|router_jitter_noise|problem_type|.*dtype"
    r"|id2label|label2id|layerdrop|.*mask_(time|feature)_.*|apply_spec_augment|is_training|name_or_path"
)
ALWAYS: Final = (*LENGTHS, "tie_word_embeddings")  # read by what feeds a model and what loads it


@contextlib.contextmanager
def reading(through: Callable[[Any, str, Any, str], Any]) -> Iterator[None]:
    """Let THROUGH see, and return, each value that code of models reads, until left.

    It is given the configuration, the key, its value, and the module whose code reads it.
    """
    from transformers import PreTrainedConfig

    plain: Any = PreTrainedConfig.__getattribute__

    def reads(self: Any, key: str) -> Any:
        value, file = plain(self, key), sys._getframe(1).f_globals.get("__name__", "")
        if not COMPUTING.match(file):
            return value
        return through(self, plain(self, "attribute_map").get(key, key), value, file)

    patched: Any = PreTrainedConfig
    patched.__getattribute__ = reads
    try:
        yield
    finally:
        patched.__getattribute__ = plain


@contextlib.contextmanager
def recorded_reads() -> Iterator[Reads]:
    """Record what code of models reads of any configuration of transformers, until left."""
    found: Reads = {}

    def record(config: Any, key: str, value: Any, file: str) -> Any:
        found.setdefault((type(config), key), set()).add(file)
        return value

    with reading(record):
        yield found


def read_as(kind: type, key: str, value: Any) -> contextlib.AbstractContextManager[None]:
    """Let code of models read VALUE for KEY of configurations of class KIND, until left."""

    def other(config: Any, name: str, own: Any, _: str) -> Any:
        return value if (type(config), name) == (kind, key) else own

    return reading(other)


def parts(config: Any) -> dict[type, str]:
    """Return the class of CONFIG and of every configuration inside it -> where it is, dotted."""
    found = {type(config): ""}
    for name, part in vars(config).items():
        if hasattr(part, "attribute_map") and type(part) not in found:
            inner = parts(part).items()
            found = {**{cls: f"{name}.{place}" for cls, place in inner}, **found}
    return found


def read_keys(config: Any, reads: Reads) -> list[str]:
    """Return the keys of CONFIG that READS holds, dotted, without those that matter to no output."""
    places = parts(config)
    own = [(places[cls], key) for cls, key in reads if cls in places]
    named = {
        f"{place}{key}"
        for place, key in own
        if not HARMLESS.fullmatch(key) and has_setting(config, place, key)
    }
    return sorted(named | {key for key in ALWAYS if key in vars(config)})


def has_setting(config: Any, place: str, key: str) -> bool:
    """Say whether the part of CONFIG at PLACE, such as ``text_config.``, has a value for KEY."""
    for name in filter(None, place.split(".")):
        config = getattr(config, name)
    computed = getattr(type(config), key, None)
    return key in vars(config) or (isinstance(computed, property) and hasattr(config, key))
