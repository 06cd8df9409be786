"""Tiny models of mlx-lm classes, their tensors named and laid out as checkpoints of the hub are.

What a class has is taken from the class; only what its ``sanitize`` undoes is done here, by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from weighbridge.converters.checkpoints.base import Header
from weighbridge.converters.common.dtypes import NUMPY
from weighbridge.converters.libraries import Target, find

Headers = dict[str, Header]
Hub = Callable[[str, tuple[int, ...]], Mapping[str, tuple[int, ...]]]
BASE = {
    "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 96, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
    "head_dim": 12, "max_position_embeddings": 64, "rope_scaling": None,
}  # fmt: skip
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 20, "norm_topk_prob": True}
MLA = {
    **BASE, **MOE, "model_type": "deepseek_v3", "num_key_value_heads": 4, "n_routed_experts": 5,
    "n_shared_experts": 1, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 10, "v_head_dim": 14, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1, "moe_layer_freq": 1, "routed_scaling_factor": 2.5,
}  # fmt: skip


class Model(NamedTuple):
    """A class, a config that it reads, and tensors of the hub."""

    target: Target
    config: dict[str, Any]
    headers: Headers

    def arrays(self, seed: int = 3) -> dict[str, np.ndarray]:
        """Return random tensors: floats of usual size, all bits of the others."""
        random = np.random.default_rng(seed)
        return {name: _random(header, random) for name, header in self.headers.items()}


def _random(header: Header, random: np.random.Generator) -> np.ndarray:
    dtype = NUMPY[header.dtype]
    if dtype.kind in "iub":
        return random.integers(0, 120, header.shape, dtype=dtype)
    if dtype == ml_dtypes.float8_e4m3fn:
        return random.integers(0, 120, header.shape, dtype=np.uint8).view(dtype)
    return random.standard_normal(header.shape).astype(dtype)


def same(name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return {name: shape}


def experts(*names: tuple[str, str], inner: str = "experts") -> Hub:
    """Return the layout in which stacked experts lie one by one, under other NAMES."""

    def hub(name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        for ours, theirs in names:
            if f"switch_mlp.{ours}." in name:
                parent = name.replace(f"switch_mlp.{ours}", f"{inner}.{{}}.{theirs}")
                return {parent.format(e): shape[1:] for e in range(shape[0])}
        return {name: shape}

    return hub


ALIKE = experts(*((name, name) for name in ("gate_proj", "up_proj", "down_proj")))


def mla(name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    if "unembed_out" in name:
        return {}
    if "embed_q" in name:
        heads, rank, nope = shape
        rows = heads * (nope + MLA["v_head_dim"])
        return {name.replace("embed_q", "kv_b_proj"): (rows, rank)}
    return ALIKE(name, shape)


def conv(name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return {name: (shape[0], shape[2], shape[1])} if "conv1d.weight" in name else ALIKE(name, shape)


def granite(name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    if "switch_mlp.up_proj" in name:
        return {}
    if "switch_mlp.gate_proj" in name:
        name = name.replace("switch_mlp.gate_proj", "input_linear")
        return {name: (shape[0], 2 * shape[1], shape[2])}
    return {name.replace("switch_mlp.down_proj", "output_linear"): shape}


def mxfp4(name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Experts of gpt_oss as they are shipped: four-bit blocks of 32, gate and up interleaved."""
    if "experts.up_proj" in name:
        return {}
    double = 2 if "experts.gate_proj" in name else 1
    name = name.replace("experts.gate_proj", "experts.gate_up_proj")
    if "experts." in name and name.endswith("proj.weight"):
        count, out, inner = shape
        blocks = (count, double * out, inner // 32, 16)
        stem = name.removesuffix(".weight")
        return {f"{stem}_blocks": blocks, f"{stem}_scales": blocks[:3]}
    if "experts." in name and name.endswith(".bias"):
        return {name.replace(".bias", "_bias"): (shape[0], double * shape[1])}
    return {name: shape}


def fused(name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Experts of dbrx: one tensor for all, the second projection transposed."""
    if ".experts." not in name:
        return {name: shape}
    head, _, tail = name.partition(".experts.")
    number, part, _ = tail.split(".")
    out, inner = reversed(shape) if part == "w2" else shape
    return {f"{head}.experts.mlp.{part}": (4 * out, inner)} if number == "0" else {}


def hunyuan(name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    if ".k_proj." in name or ".v_proj." in name or ".up_proj." in name:
        return {}
    if ".q_proj." in name:
        return {name.replace("q_proj", "qkv_proj"): (2 * shape[0], shape[1])}
    return {name.replace("gate_proj", "gate_and_up_proj"): (_doubled(name, shape[0]), *shape[1:])}


def _doubled(name: str, size: int) -> int:
    return 2 * size if ".gate_proj." in name else size


def headless(name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return {} if name == "lm_head.weight" else {name: shape}


# name -> config, layout of the hub, tensors that the class leaves out
MODELS: dict[str, tuple[dict[str, Any], Hub, dict[str, tuple[int, ...]]]] = {
    "llama": (
        {**BASE, "model_type": "llama", "tie_word_embeddings": True},
        same,
        {"lm_head.weight": (96, 48), "model.layers.0.self_attn.rotary_emb.inv_freq": (6,)},
    ),
    "mixtral": (
        {**BASE, "model_type": "mixtral", "num_local_experts": 5, "num_experts_per_tok": 2},
        experts(("gate_proj", "w1"), ("down_proj", "w2"), ("up_proj", "w3")),
        {},
    ),
    "deepseek_v3": (MLA, mla, {"model.layers.61.self_attn.o_proj.weight": (48, 56), "model.layers.61.enorm.weight": (48,)}),
    "qwen3_next": (
        {
            **BASE, **MOE, "model_type": "qwen3_next", "num_experts": 5, "num_hidden_layers": 4,
            "full_attention_interval": 2, "decoder_sparse_step": 1, "mlp_only_layers": [],
            "shared_expert_intermediate_size": 28, "linear_num_value_heads": 4,
            "linear_num_key_heads": 2, "linear_key_head_dim": 10, "linear_value_head_dim": 6,
            "linear_conv_kernel_dim": 3, "partial_rotary_factor": 0.5, "tie_word_embeddings": False,
        },
        conv,
        {"mtp.norm.weight": (48,), "mtp.fc.weight": (48, 96)},
    ),
    "granitemoe": (
        {
            **BASE, "model_type": "granitemoe", "num_local_experts": 5, "num_experts_per_tok": 2,
            "logits_scaling": 1.0, "attention_multiplier": 1.0, "embedding_multiplier": 1.0,
            "residual_multiplier": 1.0, "attention_bias": False, "tie_word_embeddings": False,
        },
        granite,
        {},
    ),
    "gpt_oss": (
        {
            **BASE, "model_type": "gpt_oss", "num_local_experts": 5, "num_experts_per_tok": 2,
            "hidden_size": 64, "intermediate_size": 96, "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        },
        mxfp4,
        {},
    ),
    "dbrx": (
        {
            "model_type": "dbrx", "vocab_size": 96, "d_model": 48, "n_layers": 3, "n_heads": 4,
            "ffn_config": {"ffn_hidden_size": 20, "moe_num_experts": 4, "moe_top_k": 2},
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4},
        },
        fused,
        {},
    ),
    "mamba": (
        {
            **BASE, "model_type": "mamba", "state_size": 6, "conv_kernel": 3, "time_step_rank": 5,
            "use_bias": False, "use_conv_bias": True, "tie_word_embeddings": True,
        },
        conv,
        {},
    ),
    "falcon_h1": (
        {
            **BASE, "model_type": "falcon_h1", "mamba_d_ssm": 40, "mamba_n_heads": 5,
            "mamba_d_head": 8, "mamba_d_state": 6, "mamba_n_groups": 1, "mamba_d_conv": 3,
            "mamba_expand": 2, "mamba_chunk_size": 16, "mamba_conv_bias": True,
            "mamba_proj_bias": False, "mamba_rms_norm": False, "attention_bias": False,
            "mamba_norm_before_gate": True, "mlp_bias": False, "projectors_bias": False,
            "attention_in_multiplier": 0.7, "attention_out_multiplier": 0.9, "key_multiplier": 0.8,
            "embedding_multiplier": 4.0, "lm_head_multiplier": 0.5, "ssm_in_multiplier": 1.2,
            "ssm_out_multiplier": 0.6, "mlp_multipliers": [0.8, 1.1], "time_step_limit": [0, 1e9],
            "ssm_multipliers": [0.9, 1.1, 1.2, 0.8, 1.3], "tie_word_embeddings": False,
        },
        conv,
        {},
    ),
    "hunyuan": (
        {
            **BASE, "model_type": "hunyuan", "attention_bias": False, "moe_topk": 2,
            "num_experts": 1, "num_shared_expert": 1, "use_mixed_mlp_moe": False,
            "use_qk_norm": True, "use_cla": False, "cla_share_factor": 2,
            "rope_scaling": {"type": "dynamic", "factor": 1.0, "alpha": 1000.0},
            "tie_word_embeddings": True,
        },
        hunyuan,
        {},
    ),
    "baichuan_m1": (
        {
            **BASE, "model_type": "baichuan_m1", "sliding_window": 16, "sliding_window_layers": [1],
            "conv_window": 2, "num_swa_attention_heads": 4, "num_swa_key_value_heads": 2,
        },
        same,
        {},
    ),
    "gemma3_text": (
        {
            **BASE, "model_type": "gemma3_text", "sliding_window": 16, "sliding_window_pattern": 2,
            "query_pre_attn_scalar": 12, "rope_global_base_freq": 1e4,
        },
        headless,
        {},
    ),
    "gemma3": (
        {
            "model_type": "gemma3", "vocab_size": 96,
            "text_config": {
                **BASE, "model_type": "gemma3_text", "sliding_window": 16,
                "sliding_window_pattern": 2, "query_pre_attn_scalar": 12,
            },
        },
        same,
        {
            **{f"vision_tower.vision_model.encoder.layers.{n}.norm.{p}": (20,)
               for n in range(2) for p in ("weight", "bias")},
            "multi_modal_projector.mm_input_projection_weight": (20, 48),
        },
    ),
    "ernie4_5_moe": (
        {
            **BASE, "model_type": "ernie4_5_moe", "use_bias": False, "tie_word_embeddings": True,
            "moe_num_experts": 5, "moe_layer_start_index": 1, "moe_layer_end_index": 2,
            "moe_intermediate_size": 20, "moe_num_shared_experts": 1, "moe_k": 2,
            "moe_layer_interval": 1,
        },
        ALIKE,
        {f"model.layers.{n}.mlp.moe_statics.e_score_correction_bias": (1, 5) for n in (1, 2)},
    ),
    "minicpm": (
        {
            **BASE, "model_type": "minicpm", "dim_model_base": 48, "scale_depth": 1.4,
            "scale_emb": 12, "tie_word_embeddings": False,
        },
        headless,
        {},
    ),
}  # fmt: skip


def tiny(name: str) -> Model:
    """Return the model called NAME, its tensors in bfloat16."""
    config, hub, dropped = MODELS[name]
    target = find(config)
    assert target is not None
    parameters = target.parameters(config)
    shapes = dict(
        item for name, header in parameters.items() for item in hub(name, header.shape).items()
    )
    codes = {"_blocks": "U8", "_scales": "U8"}
    headers = {
        name: Header(codes.get(name[-7:], "BF16"), shape)
        for name, shape in {**shapes, **dropped}.items()
    }
    return Model(target, config, headers)


def blocks_of_fp8(model: Model) -> Model:
    """Return MODEL as DeepSeek ships it: float8, with a scale for each block of 128 by 128."""
    headers: Headers = {}
    for name, header in model.headers.items():
        if "_proj" in name and len(header.shape) == 2:
            rows, columns = header.shape
            headers[name] = Header("F8_E4M3", header.shape)
            headers[f"{name}_scale_inv"] = Header("F32", (-(-rows // 128), -(-columns // 128)))
        else:
            headers[name] = header
    return model._replace(headers=headers)


def quantized_kv_b(model: Model) -> Model:
    """Return MODEL with the projection that is split in two quantized already."""
    config = {**model.config, "kv_lora_rank": 64, "qk_nope_head_dim": 64, "v_head_dim": 128}
    headers: Headers = {}
    for name, header in model.headers.items():
        if "kv_b_proj" in name:
            stem, rows = name.removesuffix(".weight"), 4 * (64 + 128)
            headers[name] = Header("U32", (rows, 8))
            headers |= {
                f"{stem}.{part}": Header("BF16", (rows, 1)) for part in ("scales", "biases")
            }
        else:
            headers[name] = header
    return Model(model.target, config, headers)


VARIANTS: dict[str, tuple[str, Callable[[Model], Model]]] = {
    "deepseek_v3_fp8": ("deepseek_v3", blocks_of_fp8),
    "deepseek_v3_quantized": ("deepseek_v3", quantized_kv_b),
}


def _named(name: str) -> Model:
    if name in VARIANTS:
        base, change = VARIANTS[name]
        return change(tiny(base))
    return tiny(name)


@pytest.fixture
def model_of() -> Callable[[str], Model]:
    return _named


@pytest.fixture(params=sorted([*MODELS, *VARIANTS]))
def model(request) -> Iterator[Model]:
    return _named(request.param)
