"""What an MLX class does not do as the config says: upstream's limits, measured and named.

Each was seen as a difference of logits that goes away when the value does; `mlx-lm 0.32.2`,
transformers 5.23. The weights are right either way.
"""

from __future__ import annotations

from collections.abc import Callable
from math import frexp, isqrt
from typing import Final, NamedTuple

from ..libraries import Target
from ..libraries.repairs.catalogue import irregular
from .source import Source


class Limit(NamedTuple):
    """A limit of a class: when it bites, what happens then, and which part of a repair mends it."""

    bites: Callable[[Source], bool]
    note: str
    part: str = ""


def other(key: str, *values: object) -> Callable[[Source], bool]:
    """Return whether KEY has a value that is none of VALUES."""
    return lambda source: source.get(key) not in values


def always(_: Source) -> bool:
    """Apply whatever the config says."""
    return True


def inner_size(key: str) -> Callable[[Source], bool]:
    """Return whether the size KEY of the feed-forward part is not four times the hidden size."""
    return lambda source: source.get(key) not in (None, 4 * source.get("hidden_size", 0))


def scale_rounds(source: Source) -> bool:
    """Return whether the root of the hidden size has more bits than bfloat16."""
    hidden = source.get("hidden_size") or source.part("text_config").get("hidden_size", 0)
    return isqrt(hidden) ** 2 != hidden or frexp(isqrt(hidden))[0] * 256 % 1 != 0


def some_experts(source: Source) -> bool:
    """Return whether tokens choose among experts."""
    return bool(source.get("num_experts_per_tok", 0) < source.get("num_experts", 0))


def own_layers(source: Source) -> bool:
    """Return whether layers of full attention do not follow one another at one distance."""
    return irregular(source.part("text_config").written or source.written)


ROUNDED: Final = "scales embeddings by the root of the hidden size in bfloat16, in float32 runs too"
LATENT: Final = (
    "normalises the latents with rms_norm_eps where transformers uses 1e-6; outputs differ slightly"
)


DEFAULT_LATENT: Final = (
    "normalises the latents with 1e-5 where transformers uses 1e-6; outputs differ slightly"
)


def not_1e_6(source: Source) -> bool:
    """Return whether norms have another epsilon than that of transformers' latents."""
    return bool(source.get("rms_norm_eps", 1e-6) != 1e-6)


GEMMA3: Final = [
    Limit(scale_rounds, ROUNDED, "embedding_scale"),
    Limit(
        own_layers, "takes every so many layers as full attention, not layer_types", "layer_kinds"
    ),
]

METAL: Final = Limit(always, "runs on Metal only; its outputs cannot be checked elsewhere")
# MLX model file -> its limits.
LIMITS: Final[dict[str, list[Limit]]] = {
    "bitnet": [
        Limit(always, "loads packed weights alone, with weight_scale beside each", "dense_weights")
    ],
    "ernie4_5_moe": [
        Limit(always, "drops e_score_correction_bias, which routes tokens", "correction_bias")
    ],
    "falcon_h1": [
        Limit(
            lambda source: (
                source.get("key_multiplier", 1) != 1
                or source.get("attention_in_multiplier", 1) != 1
            ),
            "does not apply key_multiplier and attention_in_multiplier to keys and values",
            "multipliers",
        )
    ],
    "gemma": [
        Limit(
            always, "computes the exact gelu; transformers computes gelu_pytorch_tanh", "activation"
        )
    ],
    "gemma3": GEMMA3,
    "gemma3_text": GEMMA3,
    "gemma3n": [
        Limit(
            always,
            "wants keys and values for layers that share them; save_pretrained drops them",
            "shared_keys",
        )
    ],
    "glm": [
        Limit(
            lambda source: source.rope().get("partial_rotary_factor", 1.0) != 1.0,
            "rotates whole heads; it does not read partial_rotary_factor",
            "rotary_fraction",
        )
    ],
    "glm4_moe_lite": [Limit(not_1e_6, LATENT, "epsilon")],
    "gpt2": [
        Limit(
            inner_size("n_inner"),
            "takes 4 times the hidden size; it does not read n_inner",
            "inner_size",
        )
    ],
    "gpt_bigcode": [
        Limit(
            other("activation_function", "gelu"),
            "computes the exact gelu; it does not read activation_function",
            "activation",
        )
    ],
    "gpt_neox": [
        Limit(
            other("hidden_act", "gelu_pytorch_tanh", "gelu_new", "gelu_fast"),
            "computes gelu_pytorch_tanh; it does not read hidden_act",
            "activation",
        ),
        Limit(
            inner_size("intermediate_size"),
            "takes 4 times the hidden size; it does not read intermediate_size",
            "inner_size",
        ),
    ],
    "gptj": [
        Limit(
            inner_size("n_inner"),
            "takes 4 times the hidden size; it does not read n_inner",
            "inner_size",
        )
    ],
    "jamba": [
        Limit(
            some_experts,
            "weights the chosen experts by a softmax over them, not over all experts",
            "router_weights",
        )
    ],
    "kimi_k25": [
        Limit(
            lambda source: bool(source.get("tie_word_embeddings", False)),
            "has a head of its own; a tied one does not load",
        )
    ],
    "kimi_linear": [Limit(not_1e_6, LATENT, "epsilon")],
    "llama4": [
        Limit(
            lambda source: source.part("text_config").get("rms_norm_eps") != 1e-6,
            "normalises queries and keys with 1e-6, not rms_norm_eps; outputs differ slightly",
            "query_norm",
        )
    ],
    "longcat_flash": [Limit(always, DEFAULT_LATENT, "epsilon")],
    "mamba2": [
        Limit(
            lambda source: source.get("n_groups", 1) > 1,
            "normalises the gated output over all channels; transformers does by group",
            "grouped_norm",
        )
    ],
    "minicpm3": [
        Limit(
            lambda source: (
                bool(source.get("tie_word_embeddings"))
                and source.get("dim_model_base") != source.get("hidden_size")
            ),
            "does not divide by hidden_size / dim_model_base where the head is tied",
            "tied_scale",
        ),
        Limit(always, DEFAULT_LATENT, "epsilon"),
    ],
    "minimax": [
        Limit(
            lambda source: "linear_attention" in source.get("layer_types", []),
            "is MiniMax-M2; MiniMax-Text-01, with lightning attention, is another architecture",
        )
    ],
    "muse_spark": [METAL],
    "nanochat": [
        Limit(
            other("rms_norm_eps", 1e-5),
            "normalises with 1e-5; it does not read rms_norm_eps",
            "function_norm",
        )
    ],
    "qwen2_moe": [
        Limit(
            lambda source: bool(source.get("norm_topk_prob")),
            "does not normalise the weights of experts; it does not read norm_topk_prob",
            "normalised_experts",
        )
    ],
    "recurrent_gemma": [
        Limit(
            lambda source: source.get("rms_norm_eps") != 1e-5,
            "normalises with 1e-5; it does not read rms_norm_eps",
            "epsilon",
        ),
        Limit(
            scale_rounds,
            "scales embeddings in float32; transformers rounds the scale to bfloat16",
            "embedding_scale",
        ),
        Limit(
            lambda source: (
                source.get("head_dim", 0) * source.get("num_attention_heads", 0)
                != source.get("hidden_size")
            ),
            "takes hidden_size / num_attention_heads; it does not read head_dim",
        ),
    ],
    "starcoder2": [
        Limit(
            other("hidden_act", "gelu"),
            "computes the exact gelu; it does not read hidden_act",
            "activation",
        )
    ],
}


EMBEDDING_LIMITS: Final[dict[str, list[Limit]]] = {
    "modernbert": [
        Limit(
            other("hidden_activation", "gelu_pytorch_tanh"),
            "computes the tanh form of gelu; it does not read hidden_activation",
            "gelu",
        )
    ]
}
SEEING_LIMITS: Final[dict[str, list[Limit]]] = {"muse_spark": [METAL]}
OF_LIBRARY: Final = {
    "mlx-lm": LIMITS,
    "mlx-embeddings": EMBEDDING_LIMITS,
    "mlx-vlm": SEEING_LIMITS,
}


def notes(target: Target, source: Source) -> tuple[str, ...]:
    """Return one sentence for everything in the config of SOURCE that TARGET does not do."""
    found = OF_LIBRARY.get(target.library, {}).get(target.module.rpartition(".")[2], [])
    left = (limit for limit in found if limit.part not in target.repaired)
    return tuple(f"{target} {limit.note}" for limit in left if limit.bites(source))
