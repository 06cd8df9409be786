"""Tokens of padding are seen and carried on: the class gives its layers no mask of them."""

import mlx.core as mx


class PaddingMask:
    """Tokens of padding are neither seen nor carried on."""

    def __init__(self, config):
        super().__init__(config)
        model = self

        class Layer(type(self.layers[0])):
            def __call__(self, x, *_, **__):
                return super().__call__(x, model.mask(self.is_attention_layer))

        for layer in self.layers:
            layer.__class__ = Layer

    def __call__(self, inputs, attention_mask=None):
        given = mx.ones(inputs.shape) if attention_mask is None else attention_mask
        text, place = given.astype(mx.bool_), mx.arange(inputs.shape[1])
        before, itself = place[:, None] > place, place[:, None] == place
        seen = before & text[:, None, None] | itself  # itself, or padding gives NaN
        self.mask = lambda attends: seen if attends else text
        return super().__call__(inputs, given)
