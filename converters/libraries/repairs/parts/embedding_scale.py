"""The root that scales embeddings is rounded to bfloat16, or not, otherwise than in transformers."""

import mlx.core as mx


class EmbeddingScale:
    """Embeddings are scaled by a root that is rounded to bfloat16 where transformers rounds it."""

    def __init__(self, args):
        super().__init__(args)
        text = getattr(self, "language_model", self)
        root = text.args.hidden_size**0.5
        rounded = mx.array(root, mx.bfloat16).item()
        embeddings = text.model.embed_tokens
        factor = rounded / root if self.rounds else root / rounded
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
