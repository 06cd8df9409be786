"""Layers that look at a picture look at the text itself where there is none."""


class PictureLayers:
    """Layers that look at a picture do nothing where there is none."""

    def __init__(self, config):
        super().__init__(config)
        looking = [self.layers[it] for it in config.text_config.cross_attention_layers]

        class Layer(type(looking[0])):
            def __call__(self, hidden_states, cross_attention_states, **named):
                if cross_attention_states is None:
                    return hidden_states
                return super().__call__(hidden_states, cross_attention_states, **named)

        for layer in looking:
            layer.__class__ = Layer
