"""Attention of the language model sees all of the text, where config.json names a window."""

import mlx.core as mx
from mlx_vlm.models.base import create_attention_mask
from mlx_vlm.models.cache import KVCache, RotatingKVCache


class LanguageWindow:
    """Layers of sliding attention see the last `sliding_window` tokens, and keep no more."""

    def __init__(self, config):
        super().__init__(config)
        text = config.text_config
        alike = ["sliding_attention"] * len(self.language_model.layers)
        kinds = alike if self.alike else text.layer_types
        sizes = {"sliding_attention": text.sliding_window}

        class Attention(type(self.language_model.layers[0].self_attn)):
            def __call__(self, x, *args, **named):
                *args, mask, cache = (*args, *named.values())
                mask = create_attention_mask(x, cache, self.window, isinstance(mask, mx.array))
                return super().__call__(x, *args, mask=mask, cache=cache)

        class Language(type(self.language_model)):
            def make_cache(self):
                windows = [layer.self_attn.window for layer in self.layers]
                return [RotatingKVCache(window) if window else KVCache() for window in windows]

        self.language_model.__class__ = Language
        for layer, kind in zip(self.language_model.layers, kinds):
            layer.self_attn.window = sizes.get(kind)
            layer.self_attn.__class__ = Attention
