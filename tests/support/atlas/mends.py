"""The smallest changes of mlx-lm's classes, in memory, with which it computes what transformers does."""

from __future__ import annotations

from typing import Any


def tanh_gelu(model: Any) -> None:
    """Let the MLPs of ``gemma`` use the tanh approximation."""
    from mlx import nn

    for layer in model.layers:
        replace_call(
            layer.mlp,
            lambda mlp, x: mlp.down_proj(nn.gelu_approx(mlp.gate_proj(x)) * mlp.up_proj(x)),
        )


def grouped_norm(model: Any) -> None:
    """Let the gated norm of ``mamba2`` norm each group of channels for itself."""
    import mlx.core as mx
    from mlx import nn

    groups = model.args.n_groups

    def call(norm: Any, hidden: Any, gate: Any = None) -> Any:
        hidden = hidden * nn.silu(gate)
        rows = hidden.reshape(*hidden.shape[:-1], groups, -1)
        return norm.weight * mx.fast.rms_norm(rows, None, norm.eps).reshape(hidden.shape)

    for layer in model.layers:
        replace_call(layer.mixer.norm, call)


def scaled_and_precise(model: Any) -> None:
    """Let ``minicpm3`` scale before its tied head, and norm its latents with epsilon 1e-6."""
    precise_latents(model)
    scale = model.args.hidden_size / model.args.dim_model_base
    embeddings = model.model.embed_tokens
    head = embeddings.as_linear
    embeddings.as_linear = lambda hidden: head(hidden / scale)


def precise_latents(model: Any) -> None:
    """Norm the latents of ``kimi_linear`` and ``longcat_flash`` with epsilon 1e-6."""
    for name, module in model.named_modules():
        if name.endswith(("q_a_layernorm", "kv_a_layernorm")):
            module.eps = 1e-6


def without_correction_bias(reference: Any) -> None:
    """Set the correction biases of the torch model of ``ernie4_5_moe`` to zero."""
    import torch

    with torch.no_grad():
        for name, value in reference.state_dict(keep_vars=True).items():
            if name.endswith("e_score_correction_bias"):
                value.zero_()


def replace_call(module: Any, call: Any) -> None:
    """Let MODULE, and no other of its class, answer calls with CALL."""
    cls = type(module)
    module.__class__ = type(cls.__name__, (cls,), {"__call__": call})


# Changes that are made to the torch model: mlx-lm has nowhere to put what it drops.
OF_TORCH = frozenset({"without_correction_bias"})
