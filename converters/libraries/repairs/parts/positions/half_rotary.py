"""Rotary positions turn neighbours in pairs, and what an indexer compares at its begin."""

import mlx.core as mx


class HalfRotary:
    """Rotary positions turn one half with the other, and what an indexer compares at its end."""

    def __init__(self, config):
        super().__init__(config)
        for layer in self.layers:
            layer.self_attn.rope.traditional = False
            if layer.self_attn.indexer is not None:
                layer.self_attn.indexer.rope = End(config.qk_rope_head_dim, layer.self_attn.rope)


class End:
    def __init__(self, dims, rope):
        self.dims, self.rope = dims, rope

    def __call__(self, x, offset=0):
        rest, end = mx.split(x, [x.shape[-1] - self.dims], axis=-1)
        return mx.concatenate([rest, self.rope(end, offset)], axis=-1)
