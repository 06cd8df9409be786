"""Embeddings are scaled by a root that is rounded to another dtype than transformers rounds it to."""

import mlx.core as mx


class EmbeddingScale:
    """Embeddings are scaled by a root rounded to the dtype of the weights."""

    def __init__(self, args):
        super().__init__(args)
        text = getattr(self, "language_model", self).model

        class Scaled(type(text)):
            def __call__(self, inputs, cache=None, input_embeddings=None):
                h = self.embed_tokens(inputs) if input_embeddings is None else input_embeddings
                root = mx.array(self.args.hidden_size**0.5)
                rounded = root.astype(mx.bfloat16).astype(h.dtype)
                return super().__call__(inputs, cache, h * (root.astype(h.dtype) / rounded))

        text.__class__ = Scaled
