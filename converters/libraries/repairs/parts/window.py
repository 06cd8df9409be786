"""Attention sees all of the text, where config.json names a window."""

import mlx.core as mx
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import KVCache, RotatingKVCache


class Window:
    """Layers of sliding attention see the last `sliding_window` tokens, and keep no more."""

    def __init__(self, args):
        nested = getattr(args, "text_config", None)
        text = dict(nested or vars(args))
        kinds = text.get("layer_types") or ["sliding_attention"] * text["num_hidden_layers"]
        alike = {"layer_types": ["full_attention"] * len(kinds)}  # for each makes its own mask
        vars(args).update({"text_config": text | alike} if nested else alike)
        super().__init__(args)

        class Attention(type(self.layers[0].self_attn)):
            def __call__(self, x, *args, **named):
                *args, mask, cache = (*args, *named.values())
                mask = create_attention_mask(x, cache, self.window, isinstance(mask, mx.array))
                return super().__call__(x, *args, mask=mask, cache=cache)

        sizes = {"sliding_attention": text.get("sliding_window")}
        for layer, kind in zip(self.layers, kinds):
            layer.self_attn.window = sizes.get(kind)
            layer.self_attn.__class__ = Attention

    def make_cache(self):
        windows = [layer.self_attn.window for layer in self.layers]
        return [RotatingKVCache(window) if window else KVCache() for window in windows]
