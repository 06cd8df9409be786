"""Every token attends to all others, past the window and, in a causal model, to later ones."""

import mlx.core as mx


class EmbeddingMask:
    """Tokens see those of their window, in layers that have one, and later ones only where both ways are read."""

    def __init__(self, args):
        super().__init__(args)
        both = args.use_bidirectional_attention
        window = args.sliding_window // 2 + 1 if both else args.sliding_window

        class Attention(type(self.layers[0].self_attn)):
            def __call__(self, x, mask=None, cache=None):
                place = mx.arange(x.shape[1])
                apart = place[:, None] - place
                apart = mx.abs(apart) if both else apart
                far = apart >= window if self.is_sliding else False
                # not infinite: else a token of padding, which sees none, gives NaN
                hidden = mx.where((apart < 0) | far, mx.finfo(mask.dtype).min, mask)
                return super().__call__(x, hidden, cache)

        for layer in self.layers:
            layer.self_attn.__class__ = Attention
