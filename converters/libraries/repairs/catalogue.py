"""Which faults the classes of the MLX libraries have, by model type, and what each repair has to know."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True)
class Repair:
    """A fault of a class that a part of ``model.py`` mends.

    Attributes:
        part: the file below ``parts/``; its class is called so too.
        fields: of config.json that the library's class does not keep, with their defaults.
        whole: the same of the whole model, where these are of the language model in it.
        needed: whether the class is right, and no map says what it makes of the weights.
        unloaded: whether the class does not load what is written for it.
        settings: attributes of the model by which the part knows this class.
        when: whether the language model's configuration leaves room for the fault.
    """

    part: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    when: Callable[[Mapping[str, Any]], bool] = lambda _: True
    whole: Mapping[str, Any] = field(default_factory=dict)
    needed: bool = False
    unloaded: bool = False


def given(key: str) -> Callable[[Mapping[str, Any]], bool]:
    """Return whether KEY is there and not null, or may have a default."""
    return lambda text: bool(text.get(key, True))


def irregular(text: Mapping[str, Any]) -> bool:
    """Return whether layers of full attention do not follow one another at one distance.

    >>> sliding, full = "sliding_attention", "full_attention"
    >>> irregular({"layer_types": [sliding, full, full]}), irregular({"layer_types": [sliding, full]})
    (True, False)
    """
    full = [kind == "full_attention" for kind in text.get("layer_types") or ()]
    period = full.index(True) + 1 if any(full) else 1
    return full != [(place + 1) % period == 0 for place in range(len(full))]


def activation(key: str, *layers: str, default: str = "") -> Repair:
    """Return the repair of feed-forward LAYERS whose activation KEY names; without DEFAULT it is KEY."""
    settings = {"activation": key, "feed_forward": layers}
    return Repair("activation", {key: default} if default else {}, settings)


def inner_size(key: str, *layers: str) -> Repair:
    """Return the repair of feed-forward LAYERS, up and down, whose width KEY names."""
    return Repair(
        "inner_size", {key: None}, {"inner_size": key, "feed_forward": layers}, given(key)
    )


def epsilon(value: float | str, *norms: str) -> Repair:
    """Return the repair of NORMS whose epsilon is VALUE, or the setting of that name."""
    return Repair("epsilon", settings={"norms": norms, "epsilon": value})


LATENTS: Final = epsilon(1e-6, "q_a_layernorm", "kv_a_layernorm")
EXACT_SCALE: Final = Repair("embedding_scale", settings={"rounds": False})
WINDOW: Final = Repair(
    "window", {"sliding_window": None, "layer_types": ()}, {}, given("sliding_window")
)
NESTED_WINDOW: Final = Repair("window", when=given("sliding_window"))
OWN_LAYERS: Final = (
    Repair("layer_kinds", when=irregular),
    Repair("window", {"layer_types": ()}, when=irregular),
)


def alike(text: Mapping[str, Any]) -> bool:
    """Return whether all layers have one window."""
    return bool(text.get("sliding_window")) and not text.get("layer_types")


def gelu(forms: Mapping[str, str]) -> Repair:
    """Return the repair of layers that FORMS name by the ends of their names: none approximates, or tanh."""
    return Repair("gelu", settings={"forms": forms})


def tower_epsilon(key: str, *norms: str) -> Repair:
    """Return the repair of NORMS of a tower, whose epsilon KEY of its configuration is."""
    return Repair("tower_epsilon", settings={"norms": norms, "epsilon": key})


def picture_mask(*tokens: str, apart: bool) -> Repair:
    """Return the repair of a mask that TOKENS of the configuration, or those of one picture, see through."""
    return Repair("picture_mask", settings={"picture_tokens": tokens, "apart": apart})


MOLMO: Final = (
    *("image_patch_id", "image_col_id", "image_start_token_id", "low_res_image_start_token_id"),
    *("image_end_token_id", "frame_start_token_id", "frame_end_token_id", "image_low_res_id"),
)
SAM: Final = ("geometry_encoder", "detr_encoder", "detr_decoder", "mask_decoder")
LINEAR_DECAY: Final = Repair("linear_decay")
QWEN: Final = ("qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen4_exp")
GLM4V: Final = (Repair("bicubic_positions"), tower_epsilon("rms_norm_eps", "norm1", "norm2"))
ALIKE: Final = {"alike": True}  # all layers have the window
# Model type -> file of mlx-lm whose class is mended, where its own for the type is of something else.
INSTEAD: Final = {
    "olmo": "llama"
}  # its own reads hf_olmo's files, and ends the process without that

# Model type -> the repairs of mlx-lm's class for it, the outermost first.
REPAIRS: Final[dict[str, tuple[Repair, ...]]] = {
    "bitnet": (Repair("dense_weights"),),
    "ernie4_5_moe": (Repair("correction_bias"),),
    "falcon_h1": (Repair("multipliers"),),
    "gemma": (activation("gelu_pytorch_tanh", "gate_proj", "up_proj", "down_proj"),),
    "gemma2": (WINDOW,),
    "gemma3": (EXACT_SCALE, *OWN_LAYERS),
    "gemma3n": (Repair("shared_keys"),),
    "gemma3_text": (EXACT_SCALE, *OWN_LAYERS),
    "glm": (Repair("rotary_fraction", {"partial_rotary_factor": 1.0}),),
    "glm4_moe_lite": (LATENTS,),
    "gpt2": (inner_size("n_inner", "c_fc", "c_proj"),),
    "gpt_bigcode": (
        activation("activation_function", "c_fc", "c_proj", default="gelu_pytorch_tanh"),
    ),
    "gpt_neox": (
        activation("hidden_act", "dense_h_to_4h", "dense_4h_to_h", default="gelu"),
        inner_size("intermediate_size", "dense_h_to_4h", "dense_4h_to_h"),
    ),
    "gptj": (inner_size("n_inner", "fc_in", "fc_out"),),
    "jamba": (Repair("router_weights", settings={"block": "JambaSparseMoeBlock"}),),
    "kimi_linear": (LATENTS,),
    "llama4": (Repair("query_norm"),),
    "llava": (NESTED_WINDOW,),
    "longcat_flash": (LATENTS,),
    "mamba2": (Repair("grouped_norm"),),
    "minicpm3": (LATENTS, Repair("tied_scale")),
    "ministral3": (WINDOW,),
    "mistral": (WINDOW,),
    "mistral3": (NESTED_WINDOW,),
    "mixtral": (WINDOW,),
    "nanochat": (Repair("function_norm", {"rms_norm_eps": 1e-6}),),
    "olmo": (Repair("plain_norm", {"clip_qkv": None}),),
    "phi3": (WINDOW, Repair("long_rope", when=given("rope_scaling"))),
    "phimoe": (WINDOW,),
    "qwen2": (WINDOW,),
    "qwen2_moe": (
        WINDOW,
        Repair(
            "normalised_experts",
            {"norm_topk_prob": False},
            {"block": "Qwen2MoeSparseMoeBlock"},
            lambda text: bool(text.get("norm_topk_prob")),
        ),
    ),
    "qwen3": (WINDOW,),
    "qwen3_moe": (WINDOW,),
    "recurrent_gemma": (
        epsilon("rms_norm_eps", "temporal_pre_norm", "channel_pre_norm"),
        Repair("embedding_scale", settings={"rounds": True}),
    ),
    "starcoder2": (
        WINDOW,
        activation("hidden_act", "c_fc", "c_proj", default="gelu_pytorch_tanh"),
    ),
}


# The same of mlx-vlm's class; fields are those of the language model.
SEEING: Final[dict[str, tuple[Repair, ...]]] = {
    "cohere2_vision": (Repair("last_norm"), tower_epsilon("layer_norm_eps", "post_layernorm")),
    "deepseek_v4": (Repair("overlapping_windows"),),
    "flint": (Repair("computed", settings={"computed": {"expert_bias"}}, needed=True),),
    "gemma3": (Repair("exact_scale"), picture_mask("image_token_index", apart=True)),
    "glm4v": GLM4V,
    "glm4v_moe": GLM4V,
    "granite4_vision": (gelu({"activation_fn": "tanh"}),),
    "hunyuan_vl": (Repair("bilinear_positions"), Repair("rotary_sections")),
    "hy_v4": (
        Repair("half_rotary"),
        Repair("stream_epsilon"),
        Repair("limited_experts", whole={"swiglu_limit": 10.0}),
    ),
    "idefics2": (
        Repair("patch_positions"),
        gelu({"activation_fn": "tanh"}),
        Repair("language_window", {"sliding_window": None}, ALIKE, given("sliding_window")),
    ),
    "inkling_mm_model": (
        Repair("computed", settings={"computed": {"gate_scale", "out_scale"}}, needed=True),
    ),
    "internvl": (gelu({"projector.activation": "none", "activation_fn": "none"}),),
    "kimi_k25": (gelu({"activation_fn": "tanh"}),),
    "llama4": (Repair("query_norm"), gelu({"activation_fn": "none"})),
    **dict.fromkeys(("minicpmv4_6", "minicpmv4_7"), (gelu({"mlp.0.act": "none"}), LINEAR_DECAY)),
    "llava_next": (Repair("tiles", whole={"image_grid_pinpoints": ()}),),
    "mistral3": (Repair("language_window", settings=ALIKE, when=alike),),
    "mllama": (Repair("picture_layers"),),
    "modernbert": (gelu({"mlp.act": "none"}),),
    "molmo2": (gelu({"feed_forward.act": "tanh"}), picture_mask(*MOLMO, apart=False)),
    "nemotron_h_omni": (
        Repair("computed", settings={"computed": {"norm_mean", "norm_std"}}),
        Repair("layer_scale"),
    ),
    **dict.fromkeys(QWEN, (LINEAR_DECAY,)),
    "rt_detr_v2": (Repair("turned_once", unloaded=True),),
    "sapiens2": (Repair("computed", settings={"computed": {"periods"}}),),
    "sam3": (
        Repair("box_edges"),
        Repair(
            "fixed_epsilon",
            settings={"parts": tuple(f"detector_model.{it}." for it in SAM), "fixed_epsilon": 1e-5},
        ),
        Repair(
            "detector_alone",
            whole=dict.fromkeys(f"{it}_config" for it in SAM),
            unloaded=True,
        ),
    ),
    "siglip": (gelu({"activation_fn": "tanh"}), Repair("picture_tower")),
    "unlimited_ocr": (
        Repair("resampled_positions"),
        gelu({"activation_fn": "fast"}),
        Repair("sam_tower"),
    ),
    "qwen3_omni_moe": (gelu({"mlp.act_fn": "tanh"}),),
    "qwen3_vl_moe": (gelu({"act_fn": "none", "mlp.act_fn": "tanh"}),),
}

# The same of mlx-embeddings' class.
EMBEDDING: Final[dict[str, tuple[Repair, ...]]] = {
    "gemma3_text": (
        Repair(
            "embedding_mask",
            {"use_bidirectional_attention": False},
            when=given("sliding_window"),
        ),
    ),
    "lfm2": (Repair("padding_mask"),),
    "modernbert": (gelu({"mlp.act": "none"}),),
    "qwen3": (Repair("left_padding"),),
    "qwen3_vl": (Repair("new_positions"),),
}
OF_LIBRARY: Final = {"mlx-lm": REPAIRS, "mlx-vlm": SEEING, "mlx-embeddings": EMBEDDING}


def asked(config: Mapping[str, Any], library: str = "mlx-lm") -> tuple[Repair, ...]:
    """Return the repairs of LIBRARY's class for CONFIG, without those that it leaves no room for.

    >>> [it.part for it in asked({"model_type": "starcoder2", "sliding_window": None})]
    ['activation']
    """
    inner = config.get("text_config")
    text = inner if isinstance(inner, Mapping) else config
    kind = config.get("model_type")
    known = OF_LIBRARY.get(library, {}).get(kind, ()) if isinstance(kind, str) else ()
    return tuple(it for it in known if it.when(text))


def needs(library: str, kind: str) -> bool:
    """Return whether weights of model type KIND have no map for LIBRARY's class, but for a repaired one.

    >>> needs("mlx-vlm", "flint"), needs("mlx-vlm", "gemma3")
    (True, False)
    """
    return any(it.needed for it in OF_LIBRARY.get(library, {}).get(kind, ()))


def unloaded(library: str, kind: str) -> bool:
    """Return whether LIBRARY's class for model type KIND loads what is written for it only if repaired.

    >>> unloaded("mlx-vlm", "rt_detr_v2"), unloaded("mlx-vlm", "gemma3")
    (True, False)
    """
    return any(it.unloaded for it in OF_LIBRARY.get(library, {}).get(kind, ()))


def chosen(library: str, kind: str, parts: Collection[str]) -> tuple[Repair, ...]:
    """Return the repairs of LIBRARY's class for model type KIND that PARTS name."""
    return tuple(it for it in OF_LIBRARY[library].get(kind, ()) if it.part in parts)


def declared(library: str, kind: str, parts: Collection[str]) -> frozenset[str]:
    """Return the fields that PARTS read beside those of LIBRARY's class.

    >>> declared("mlx-lm", "gpt_neox", ("activation",))
    frozenset({'hidden_act'})
    """
    if not parts:
        return frozenset()
    return frozenset(it for row in chosen(library, kind, parts) for it in (*row.fields, *row.whole))
