"""Embeddings are scaled by a root in float32 that transformers rounds to bfloat16."""

import mlx.core as mx


class RoundedScale:
    """Embeddings are scaled by a root that is rounded to bfloat16."""

    def __init__(self, args):
        super().__init__(args)
        root = args.hidden_size**0.5
        factor = mx.array(root, mx.bfloat16).item() / root
        embeddings = self.model.embed_tokens
        embeddings.__class__ = scaled(type(embeddings), factor)


def scaled(kind, factor):
    class Scaled(kind):
        def __call__(self, x):
            return super().__call__(x) * factor

        def to_quantized(self, *args, **named):
            made = super().to_quantized(*args, **named)
            made.__class__ = scaled(type(made), factor)
            return made

    return Scaled
