"""A token of a picture sees no later token of it."""

import mlx.core as mx
from mlx_vlm.models.base import create_causal_mask


class PictureMask:
    """Tokens of a picture see one another, in layers with a window too; those of all pictures unless apart."""

    def __init__(self, config):
        super().__init__(config)
        language, apart = self.language_model, self.apart
        tokens = mx.array([getattr(config, it) for it in self.picture_tokens])

        class Attention(type(language.layers[0].self_attn)):
            def __call__(self, x, mask=None, cache=None):
                if language.together is not None:
                    offset = 0 if cache is None else cache.offset
                    if not isinstance(mask, mx.array):
                        mask = create_causal_mask(x.shape[1], offset)
                    mask = mask | mx.pad(language.together, [(0, 0)] * 3 + [(offset, 0)])
                return super().__call__(x, mask, cache)

        class Language(type(language)):
            def __call__(self, inputs, *args, **named):
                self.together = seen_by((inputs[..., None] == tokens).any(-1), apart)
                return super().__call__(inputs, *args, **named)

        language.together, language.__class__ = None, Language
        for layer in language.layers:
            layer.self_attn.__class__ = Attention


def seen_by(seen, apart):
    if seen.shape[1] == 1 or not seen.any():
        return None
    starts = seen & ~mx.pad(seen, [(0, 0), (1, 0)])[:, :-1]
    number = mx.where(seen, mx.cumsum(starts.astype(mx.int32), axis=1) * apart, -1)
    return ((number[:, :, None] == number[:, None, :]) & seen[:, None, :])[:, None]
