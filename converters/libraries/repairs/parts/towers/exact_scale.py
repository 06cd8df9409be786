"""Embeddings are scaled by a root that is rounded to bfloat16."""

import mlx.core as mx


class ExactScale:
    """Embeddings are scaled by the root of the hidden size, not rounded."""

    def __init__(self, config):
        super().__init__(config)
        root = config.text_config.hidden_size**0.5
        ratio = root / mx.array(root, mx.bfloat16).item()

        class Text(type(self.language_model.model)):
            def __call__(self, inputs, inputs_embeds=None, **named):
                h = self.embed_tokens(inputs) if inputs_embeds is None else inputs_embeds
                return super().__call__(inputs, inputs_embeds=h * ratio, **named)

        self.language_model.model.__class__ = Text
