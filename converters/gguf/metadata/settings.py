"""What the metadata of a GGUF file and a configuration both say of how weights are computed with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ....errors import MismatchError, WeighbridgeError
from ...libraries.defaults import with_defaults
from ..file import GgufFile
from .positions import rotation_differences
from .vocabulary import text_differences

# llama.cpp's name, of the architecture -> names in configurations of transformers. What has a shape to
# show it is not here.
SAME: Final[Mapping[str, tuple[str, ...]]] = {
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps", "layer_norm_epsilon"),
    "attention.layer_norm_epsilon": (
        "layer_norm_eps",
        "layer_norm_epsilon",
        "norm_epsilon",
        "norm_eps",
    ),
    "rope.freq_base": ("rope_theta", "rotary_emb_base", "global_rope_theta"),
    "context_length": (
        "max_position_embeddings",
        "n_positions",
        "n_ctx",
        "max_sequence_length",
        "max_seq_len",
        "model_max_length",
        "seq_length",
    ),
    "rope.scaling.original_context_length": (
        "original_max_position_embeddings",
        "max_position_embeddings",
    ),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "attention.head_count": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "expert_used_count": ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k"),
    "attention.sliding_window": ("sliding_window", "attention_chunk_size"),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "logit_scale": ("logit_scale", "logits_scaling"),
}
FACTOR: Final = "rope.scaling.factor"  # of linear and YaRN scaling
WINDOWED: Final = "sliding_attention"  # section of rotary settings that a file has beside those of whole attention
# What llama.cpp computes by whatever a file says, and so does no other configuration.
ALWAYS: Final[Mapping[str, Mapping[str, Any]]] = {"qwen3moe": {"norm_topk_prob": True}}
SCALED: Final = ("linear", "yarn")
NEAR: Final = 1e-5  # metadata are float32


def require_same(file: GgufFile, config: Mapping[str, Any], folder: Path) -> None:
    """Refuse a CONFIG, of FOLDER, by which other numbers would be computed than by the metadata of FILE.

    The tokenizer of FOLDER has to give the tokens of the file too. Settings that one of them lacks are
    not compared, but for a scaling of positions and the part of each head that is rotated.

    Raises:
        MismatchError: they contradict each other; each setting is listed.
    """
    full = completed(config)
    wrong = [
        *differences(file, full),
        *rotation_differences(file, full),
        *text_differences(file, config, folder),
    ]
    if wrong:
        either = "give the one that the other was made from, or correct what is wrong"
        raise MismatchError(f"{file.path} says otherwise than {folder}; {either}", wrong)


def differences(file: GgufFile, config: Mapping[str, Any]) -> Iterator[str]:
    """Yield which metadata of FILE have another value than CONFIG, in words."""
    for name, keys in SAME.items():
        own = file.value(f"{file.architecture}.{name}")
        theirs = {key: it for key, it in numbers(config, WINDOWED) if key in keys}
        if isinstance(own, int | float) and own and theirs and not is_one_of(own, theirs.values()):
            yield f"{file.architecture}.{name} is {own:g}, {shown(theirs)}"
    for key, value in ALWAYS.get(file.architecture, {}).items():
        if config.get(key, value) != value:
            yield f"llama.cpp computes {file.architecture} by {key} {value}, config.json says {config[key]}"
    own = file.value(f"{file.architecture}.{FACTOR}")
    scaled = file.value(f"{file.architecture}.rope.scaling.type") in SCALED
    factors = {key: it for key, it in numbers(config) if key == "factor"}
    if scaled and own and own != 1 and not is_one_of(own, factors.values()):
        yield f"{file.architecture}.{FACTOR} is {own:g}, {shown(factors) or 'config.json has none'}"
    older = file.value(f"{file.architecture}.rope.scale_linear")
    if not own and not older and (found := [it for it in scalings(config) if it != 1]):
        yield f"{file.architecture}.{FACTOR} is not there, factor {found[0]:g}"


def unwindowed(file: GgufFile, config: Mapping[str, Any]) -> str:
    """Say that FILE has no window of attention where CONFIG has one that texts can exceed; else nothing.

    llama.cpp's converter writes none for architectures that it computes without, such as that of Mistral.
    """
    full = completed(config)
    window, longest = full.get("sliding_window"), full.get("max_position_embeddings")
    if not isinstance(window, int) or not window or full.get("use_sliding_window") is False:
        return ""
    if file.sized("attention.sliding_window") or (isinstance(longest, int) and longest <= window):
        return ""
    return (
        f"config.json has a window of {window:,} tokens and the file none: in llama.cpp each token of a"
        " longer text reads all before it"
    )


def scalings(config: Mapping[str, Any]) -> Iterator[float]:
    """Yield the factors of linear and YaRN scaling in CONFIG, of sections too.

    >>> list(scalings({"rope_scaling": {"type": "linear", "factor": 4.0}, "text": {"rope_type": "llama3"}}))
    [4.0]
    """
    if config.get("rope_type", config.get("type")) in SCALED and config.get("factor"):
        yield config["factor"]
    for value in config.values():
        yield from scalings(value) if isinstance(value, Mapping) else ()


def completed(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return CONFIG with the defaults of its class of transformers, where there is one."""
    try:
        return with_defaults(config)
    except WeighbridgeError:  # what cannot be read is said where it is needed
        return config


def numbers(config: Mapping[str, Any], without: str = "") -> Iterator[tuple[str, float]]:
    """Yield every number of CONFIG with its key, of sections too but those WITHOUT.

    >>> list(numbers({"rope_parameters": {"rope_theta": 1e4}, "use_cache": True}))
    [('rope_theta', 10000.0)]
    """
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from numbers(value, without) if key != without else ()
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield key, value


def is_one_of(value: float, others: Any) -> bool:
    """Say whether VALUE is one of OTHERS, but for rounding to float32."""
    return any(math.isclose(value, other, rel_tol=NEAR) for other in others)


def shown(found: Mapping[str, float]) -> str:
    """Return FOUND in words."""
    return " and ".join(f"{key} {value:g}" for key, value in found.items())
