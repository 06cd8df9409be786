"""A text that is padded on the left gives NaN: a token of padding sees no token at all."""

import mlx.core as mx


class LeftPadding:
    """Every token sees itself, those of padding too."""

    def __init__(self, config):
        super().__init__(config)

        class Inner(type(self.model)):
            def __call__(self, input_ids, attention_mask=None, **named):
                text, place = attention_mask.astype(mx.bool_), mx.arange(input_ids.shape[1])
                before, itself = place[:, None] > place, place[:, None] == place
                seen = before & text[:, None, None] | itself
                return super().__call__(input_ids, attention_mask=seen, **named)

        self.model.__class__ = Inner
