"""Rotary positions are scaled by `long_factor` in short texts too."""

import mlx.core as mx
from mlx_lm.models.rope_utils import SuScaledRoPE


class LongRope:
    """Rotary positions are scaled by `short_factor` up to the length that the model was made for."""

    def __init__(self, args):
        super().__init__(args)
        for module in self.modules():
            if type(module) is SuScaledRoPE:
                powers = mx.arange(0, module.dim, 2, dtype=mx.float32) / module.dim
                module._long = module._freqs
                module._short = args.rope_theta**powers * mx.array(
                    args.rope_scaling["short_factor"]
                )
                module.__class__ = Rope


class Rope(SuScaledRoPE):
    def __call__(self, x, offset=0):
        first = offset if isinstance(offset, int) else mx.max(offset).item()
        long = first + x.shape[-2] > self.original_max_position_embeddings
        self._freqs = self._long if long else self._short
        return super().__call__(x, offset)
