"""The root that scales embeddings is rounded otherwise than in transformers."""

import mlx.core as mx


class EmbeddingScale:
    """Embeddings are scaled by a root that is rounded as transformers does: to bfloat16, or their dtype."""

    def __init__(self, args):
        super().__init__(args)
        text = getattr(self, "language_model", self)
        root, embeddings = text.args.hidden_size**0.5, text.model.embed_tokens
        rounded = {it: mx.array(root, it).item() for it in (mx.float32, mx.float16, mx.bfloat16)}
        brief = rounded[mx.bfloat16]
        pairs = {it: brief / root if self.rounds else rounded[it] / brief for it in rounded}
        embeddings.__class__ = scaled(type(embeddings), pairs)


def scaled(kind, factors):
    class Scaled(kind):
        def __call__(self, x):
            y = super().__call__(x)
            return y * factors[y.dtype]

        def to_quantized(self, *args, **named):
            made = super().to_quantized(*args, **named)
            made.__class__ = scaled(type(made), factors)
            return made

    return Scaled
