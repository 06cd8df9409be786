"""Rows: how one key of an MLX class follows from a transformers config."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from .source import Source
from .translation import ABSENT

Row = Callable[[Source], Any]
SLIDES: Final = ("sliding_attention", "full_attention")


def always(value: Any) -> Row:
    """Return the row of a constant: what transformers' code does, and no config says."""
    return lambda _: value


def same_as(key: str) -> Row:
    """Return the row of a key that has another name in transformers."""
    return lambda source: source.find(key)


def rope_value(key: str, layer: str = "full_attention", default: Any = ABSENT) -> Row:
    """Return the row of a value that transformers 5 keeps in ``rope_parameters``."""
    return lambda source: source.rope(layer).get(key, source.written.get(key, default))


def head_dim(source: Source) -> Any:
    """Return the size of a head, the hidden size shared out where no key says it."""
    declared = source.get("head_dim")
    heads, hidden = source.get("num_attention_heads"), source.get("hidden_size")
    return declared or (hidden // heads if hidden and heads else ABSENT)


def rotary_dim(source: Source) -> Any:
    """Return how many dimensions of a head rotate."""
    return int(head_dim(source) * source.rope().get("partial_rotary_factor", 1.0))


def rope_scaling(source: Source) -> Any:
    """Return the rotary scaling as transformers 4 wrote it: nothing for the default, else typed."""
    found = source.rope()
    kind = found.get("rope_type") or found.get("type") or "default"
    if kind == "default" and "mrope_section" not in found:
        return None
    return {**found, "type": kind, "rope_type": kind}


def sectioned(source: Source) -> Any:
    """Return the rotary scaling under the names of HunYuan's own code."""
    found = source.rope()
    kind = "xdrope" if "mrope_section" in found else found.get("rope_type", "default")
    return {**found, "type": kind, "xdrope_section": found.get("mrope_section")}


def tokens_before(source: Source) -> Any:
    """Return what C-RADIO's own code counts the tokens before the patches by."""
    classes, registers = source.get("num_cls_tokens"), source.get("num_registers")
    teachers = [{"name": str(number)} for number in range(classes)]
    return {"teachers": teachers, "register_multiple": classes + registers if registers else None}


def shared_rope(source: Source) -> Any:
    """Return the rotary parameters that all layers that rotate have, once; by layer where they differ."""
    written = source.get("rope_parameters", {})
    found = [written[kind] for kind in SLIDES if isinstance(written.get(kind), dict)]
    alike = found and all(it == found[0] for it in found)
    return dict(found[0]) if alike and written.get(SLIDES[0]) else written


def all_rotate(source: Source) -> bool:
    """Return whether layers of full attention rotate as well."""
    written = source.get("rope_parameters", {})
    return written.get(SLIDES[1]) is not None or SLIDES[0] not in written


def initials(letters: dict[str, str]) -> Row:
    """Return the row of a pattern with one of LETTERS for each layer type."""
    return lambda source: "".join(letters[kind] for kind in source.get("layer_types", []))


def flags(kind: str, key: str = "layer_types") -> Row:
    """Return the row of a list that is 1 where the layer type in KEY is KIND."""
    return lambda source: [int(layer == kind) for layer in source.get(key, [])]


def period(source: Source) -> Any:
    """Return the distance between layers of full attention."""
    kinds = source.get("layer_types", [])
    return kinds.index("full_attention") + 1 if "full_attention" in kinds else len(kinds) + 1


def full_layer(key: str) -> Row:
    """Return the row of a value that layers of full attention have for themselves."""

    def row(source: Source) -> Any:
        kinds = source.get("layer_types", [])
        place = str(kinds.index("full_attention")) if "full_attention" in kinds else ""
        layers = source.written.get("per_layer_config") or {}
        return (layers.get(place) or {}).get(key, source.find(key))

    return row


def renamed(names: dict[str, str], key: str = "layer_types") -> Row:
    """Return the row of a list of layer types under the NAMES that the class knows."""
    return lambda source: [names.get(kind, kind) for kind in source.get(key, [])]


def long_rope(source: Source) -> Any:
    """Return the rotary scaling for a class that knows long rotary factors only."""
    trivial = {
        "type": "longrope",
        "short_factor": 1.0,
        "long_factor": 1.0,
        "original_max_position_embeddings": source.get("max_position_embeddings"),
    }
    return rope_scaling(source) or trivial


def text_value(key: str) -> Row:
    """Return the row of a key that only the text part has."""
    return lambda source: source.part("text_config").find(key)


def image_token(source: Source) -> Any:
    """Return the id that stands for a picture, by whichever of its two names it has."""
    found = source.find("image_token_index")
    return source.find("image_token_id") if found is ABSENT else found


def compression(source: Source) -> list[int]:
    """Return how many tokens of each layer become one, 0 where none do."""
    rates = source.get("compress_rates", {})
    return [rates.get(kind, 0) for kind in source.get("layer_types", [])]


def nested_tower(source: Source) -> dict[str, Any]:
    """Return Molmo's tower as its own code has it: two parts, the adapter one of them."""
    vision, adapter = source.part("vision_config"), source.part("adapter_config")
    own = {
        "image_patch_size": vision.get("patch_size"),
        "image_num_pos": vision.get("num_position_embeddings"),
        "image_default_input_size": vision.get("image_size"),
    }
    features = {"vit_layers": adapter.get("vision_feature_layer")}
    parts = {"vit": {**vision.written, **own}, "adapter": {**adapter.written, **features}}
    return {**vision.written, **{f"{name}_config": part for name, part in parts.items()}}


def linear_attention(source: Source) -> dict[str, Any]:
    """Return Kimi's own group of keys; layers count from 1."""
    kinds = list(enumerate(source.get("layer_types", []), 1))
    return {
        "kda_layers": [place for place, kind in kinds if kind != "full_attention"],
        "full_attn_layers": [place for place, kind in kinds if kind == "full_attention"],
        "num_heads": source.get("linear_num_heads"),
        "head_dim": source.get("linear_head_dim"),
        "short_conv_kernel_size": source.get("linear_conv_kernel_dim"),
    }


def each_layer(key: str, default: Any) -> Row:
    """Return the row of a list of a rotary value that types of layers have for themselves."""

    def row(source: Source) -> list[Any]:
        return [source.rope(kind).get(key, default) for kind in source.get("layer_types", [])]

    return row


def scaled_types(source: Source) -> list[str]:
    """Return the types of layers whose rotary positions are scaled."""
    kinds = dict.fromkeys(source.get("layer_types", []))
    return [kind for kind in kinds if source.rope(kind).get("rope_type", "default") != "default"]


def windowed_heads(source: Source) -> Any:
    """Return Step's own group of keys: the heads of layers with a window."""
    heads, shared = source.get("num_sliding_attention_heads"), source.get("num_key_value_heads")
    return {"num_attention_heads": heads, "num_attention_groups": shared} if heads else ABSENT


def time_steps(source: Source) -> list[Any]:
    """Return the limits of time steps, from below that which transformers computes with."""
    return [source.get("time_step_min", 0.0), *source.get("time_step_limit")[1:]]


def of_part(part: str, key: str) -> Row:
    """Return the row of a key that transformers has in a PART, as KEY."""
    return lambda source: source.part(part).find(key)


def joined_towers(source: Source) -> Any:
    """Return what joins the two towers of Unlimited-OCR to its text, as its published config.json has it."""
    vision = source.part("vision_config")
    channels = vision.part("sam_config").find("downsample_channels")[-1]
    return {
        "projector_type": "linear",
        "input_dim": channels + vision.part("encoder_config").find("hidden_size"),
        "n_embed": text_value("hidden_size")(source),
    }
