"""``config.json``: the fields that are read here, and what each may be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ..documents import CONFIG, read_optional
from ..documents.fields import (
    FLAG,
    IDS,
    NAME,
    NUMBER,
    TEXT,
    Field,
    either,
    listing,
    mapping,
    mismatches,
    whole,
)
from ..documents.flaws import refuse
from .signature import LENGTHS

FILE: Final = "config.json"
FACTORY, OPTIONS = "weighbridge_factory", "weighbridge_options"  # what builds a model, with what
LAYERS, EXPERTS = whole(10_000), whole(100_000)  # of real models: 128 and 16,384 at most
SIZE: Final = whole(2**31 - 1)
SIZES: Final = either(SIZE, listing(SIZE))
NAMES: Final = either(NAME, listing(NAME))
PART: Final = mapping()

FIELDS: Final[Mapping[str, Field]] = {
    **dict.fromkeys(("model_type", "layer_type", FACTORY), NAME),
    OPTIONS: PART,
    "architectures": NAMES,
    "layer_types": listing(NAME),
    "model_file": TEXT,
    "auto_map": either(PART, TEXT),
    **dict.fromkeys(("tie_word_embeddings", "add_adapter"), FLAG),
    **dict.fromkeys(
        ("hidden_size", "vocab_size", "d_model", "n_embd", "projection_dim", "embedding_size"),
        SIZE,
    ),
    **dict.fromkeys(
        ("num_channels", "num_labels", "num_mel_bins", "output_hidden_size", "type_vocab_size"),
        SIZE,
    ),
    **dict.fromkeys(("max_source_positions", "max_target_positions"), SIZE),
    **dict.fromkeys(LENGTHS, NUMBER),
    **dict.fromkeys(("hidden_sizes", "depths", "conv_dim", "conv_kernel", "conv_stride"), SIZES),
    **dict.fromkeys(("image_size", "patch_size"), either(SIZES, mapping(SIZE))),
    **dict.fromkeys(
        ("num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers"), LAYERS
    ),
    "num_hidden_layers": either(LAYERS, mapping(LAYERS)),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), EXPERTS),
    **dict.fromkeys(("eos_token_id", "bos_token_id", "pad_token_id"), IDS),
    "id2label": mapping(TEXT),
    **dict.fromkeys(("quantization", "quantization_config"), PART),
    **dict.fromkeys(("text_config", "vision_config", "audio_config"), PART),
}


def read_config(folder: Path) -> dict[str, Any]:
    """Return ``config.json`` of FOLDER, empty where there is none.

    Raises:
        BadInputError: it is damaged, or fields that are read here are of another type; tells all.
    """
    config = read_optional(folder / FILE)
    refuse(problems(config), folder / FILE, CONFIG)
    return config


def problems(config: Mapping[str, Any], place: str = "") -> Iterator[str]:
    """Yield what is wrong with CONFIG, found at PLACE, and with the configs inside it."""
    yield from mismatches(config, FIELDS, place)
    for key, value in config.items():
        if key.endswith("_config") and isinstance(value, dict):
            yield from problems(value, f"{place}{key}.")
