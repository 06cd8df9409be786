"""Norms have weights and no mean, where they should have a mean and no weights."""

import mlx.core as mx
import mlx.nn as nn


class PlainNorm:
    """Norms are LayerNorms without weights; `clip_qkv` limits queries, keys and values."""

    def __init__(self, args):
        super().__init__(args)
        norm = nn.LayerNorm(args.hidden_size, args.rms_norm_eps, affine=False)
        self.model.norm, limit = norm, args.clip_qkv
        for layer in self.layers:
            layer.input_layernorm = layer.post_attention_layernorm = norm
            for name in ("q_proj", "k_proj", "v_proj") if limit else ():
                layer.self_attn[name].__class__ = clipped(nn.Linear, limit)


def clipped(kind, limit):
    class Clipped(kind):
        def __call__(self, x):
            return mx.clip(super().__call__(x), -limit, limit)

        def to_quantized(self, *args, **named):
            made = super().to_quantized(*args, **named)
            made.__class__ = clipped(type(made), limit)
            return made

    return Clipped
