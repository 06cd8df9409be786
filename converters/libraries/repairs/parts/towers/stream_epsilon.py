"""What a layer adds to each of its streams lacks an epsilon."""


class StreamEpsilon:
    """The share of each stream in what a layer gives has the epsilon of config.json added."""

    def __init__(self, config):
        super().__init__(config)
        own = type(self.layers[0].hc_mlp_layer)

        class Streams(own):
            def __call__(self, x):
                collapsed, post = super().__call__(x)
                return collapsed, post + config.hc_eps

        for layer in self.layers:
            layer.hc_attn_layer.__class__ = layer.hc_mlp_layer.__class__ = Streams
