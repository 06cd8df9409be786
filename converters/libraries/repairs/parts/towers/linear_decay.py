"""Linear attention forgets too little where there is no Metal: what decays below 1e-6 is taken for 1e-6."""

import mlx.core as mx
from mlx_vlm.models.qwen3_5 import gated_delta


class LinearDecay:
    """Linear attention forgets as much as is said, in chunks of 16 tokens where there is no Metal."""

    def __init__(self, config):
        super().__init__(config)

        class Language(type(self.language_model)):
            def __call__(self, *inputs, **named):
                own = gated_delta.gated_delta_chunked
                gated_delta.gated_delta_chunked = chunked
                try:
                    return super().__call__(*inputs, **named)
                finally:
                    gated_delta.gated_delta_chunked = own

        self.language_model.__class__ = Language


def chunked(*inputs, size=16):
    q, k, v, g, beta, state, mask = inputs
    if mask is not None:
        g, beta = mx.where(mask[..., None], g, 1), mx.where(mask[..., None], beta, 0)
    dtype, length = v.dtype, v.shape[1]
    q, k = (mx.repeat(it, v.shape[2] // it.shape[2], axis=2) for it in (q, k))
    q, k, v, beta = (in_chunks(it, size) for it in (q, k, v, beta[..., None]))
    log = in_chunks(mx.log(mx.maximum(g, 1e-37)), size)
    later = mx.tri(size, k=-1)
    decay = mx.tril(mx.exp(mx.cumsum(later * log[..., None], axis=-2)))  # between two tokens
    since = mx.exp(mx.cumsum(log, axis=-1))[..., None]
    seen = decay * (q @ k.swapaxes(-1, -2))
    known = beta * later * decay * (k @ k.swapaxes(-1, -2))
    solve = gated_delta._invert_unit_lower(mx.eye(size) + known, size)
    new, old, q = solve @ (beta * v), solve @ (beta * since * k), since * q
    ys = []
    for n in range(v.shape[2]):
        before = state.swapaxes(-1, -2)
        values = new[:, :, n] - old[:, :, n] @ before
        ys.append(q[:, :, n] @ before + seen[:, :, n] @ values)
        kept = (decay[:, :, n, -1, :, None] * values).swapaxes(-1, -2) @ k[:, :, n]
        state = since[:, :, n, -1:] * state + kept
    y = mx.moveaxis(mx.concatenate(ys, axis=2), 1, 2)
    return y[:, :length].astype(dtype), state


def in_chunks(x, size):
    padded = mx.pad(x, [(0, 0), (0, -x.shape[1] % size)] + [(0, 0)] * (x.ndim - 2))
    return mx.moveaxis(mx.unflatten(padded, 1, (-1, size)), 3, 1).astype(mx.float32)
