"""Queries and keys are normalised with an epsilon that is fixed."""

import mlx.core as mx


class QueryNorm:
    """Queries and keys are normalised with `rms_norm_eps`, after they are rotated."""

    def __init__(self, args):
        super().__init__(args)
        for layer in self.layers:
            attention = layer.self_attn
            if attention.use_qk_norm:
                attention.use_qk_norm = False
                attention.rope.__class__ = normed(type(attention.rope), layer.input_layernorm.eps)


def normed(rope, eps):
    class Normed(rope):
        def __call__(self, x, offset=0):
            return mx.fast.rms_norm(super().__call__(x, offset=offset), None, eps)

    return Normed
