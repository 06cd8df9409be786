"""Layers that take keys and values of another layer want projections of their own."""


class SharedKeys:
    """Layers that take keys and values of another layer have no projections for them."""

    def __init__(self, args):
        super().__init__(args)
        for layer in self.layers:
            if layer.self_attn.is_kv_shared_layer:
                for name in ("k_proj", "v_proj", "k_norm"):
                    layer.self_attn.pop(name)

    def __call__(self, inputs, cache=None, **named):
        cache = self.make_cache() if cache is None else cache  # through it they are shared
        return super().__call__(inputs, cache=cache, **named)
