"""A norm that is a function of the library's module has an epsilon that is fixed."""

from functools import partial

import mlx.core as mx


class FunctionNorm:
    """The norm without weights has `rms_norm_eps`, while this model is called."""

    def __call__(self, *inputs, **named):
        fixed, eps = library.rms_norm, self.args.rms_norm_eps
        library.rms_norm = partial(mx.fast.rms_norm, weight=None, eps=eps)
        try:
            return super().__call__(*inputs, **named)
        finally:
            library.rms_norm = fixed
