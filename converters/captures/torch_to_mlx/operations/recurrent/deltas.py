"""The gated delta rule: a state that decays, and of which a step replaces what its key reads (Qwen3-Next, Kimi Linear).

Steps go in chunks, as in Yang et al. 2024 (Gated Delta Networks): within one, what steps replace of each other
is the solution of a triangular system; from one to the next goes the state alone. Any length fits.
"""

from __future__ import annotations

from typing import Final

import mlx.core as mx

from ..elementwise.elementary import exp
from ..linalg.precision import transposed
from ..registry import operation
from .loops import joined

_CHUNK: Final = 64  # steps, as in transformers


@operation("weighbridge.delta_rule.default")
def _delta_rule(
    query: mx.array, key: mx.array, value: mx.array, decay: mx.array, beta: mx.array
) -> mx.array:
    """Return what QUERY reads of the state after each step.

    Shapes are ``(batch, time, heads, features)``. DECAY is a logarithm, of one feature or of all; BETA, of one,
    is which share of what KEY reads gives way to VALUE.
    """
    time = key.shape[1]
    size = min(_CHUNK, 1 << max(time - 1, 0).bit_length())
    query, key, value, decay, beta = (_in_chunks(x, size) for x in (query, key, value, decay, beta))
    since = mx.cumsum(decay, axis=-2)  # the start of the chunk
    left = exp(since[..., -1:, :] - since)  # at its end
    solved = _inverted(mx.tril(_seen(key * beta, key, since), -1))
    parts = (
        solved @ (value * beta),
        solved @ (key * beta * exp(since)),
        query * exp(since),
        _seen(query, key, since),
        transposed(key * left),
        transposed(exp(since[..., -1:, :])),
    )
    return _out_of_chunks(_read(*parts), time)


def _in_chunks(x: mx.array, size: int) -> mx.array:
    """Return X as ``(chunks, batch, heads, size, features)``, zeros at its end."""
    batch, time, heads, features = x.shape
    x = mx.pad(x, [(0, 0), (0, -time % size), (0, 0), (0, 0)])
    return x.reshape(batch, -1, size, heads, features).transpose(1, 0, 3, 2, 4)


def _out_of_chunks(x: mx.array, time: int) -> mx.array:
    chunks, batch, heads, size, features = x.shape
    x = x.transpose(1, 0, 3, 2, 4).reshape(batch, chunks * size, heads, features)
    return x[:, :time]


def _seen(reader: mx.array, written: mx.array, since: mx.array) -> mx.array:
    """Return what READER at one step has of what is WRITTEN at the same or an earlier one, decayed."""
    size = since.shape[-2]
    past = mx.tril(mx.ones((size, size), mx.bool_))[..., None]
    between = since[..., :, None, :] - since[..., None, :, :]
    kept = exp(mx.where(past, between, -mx.inf))
    if since.shape[-1] == 1:
        return (reader @ transposed(written)) * kept.squeeze(-1)
    return mx.sum(reader[..., :, None, :] * written[..., None, :, :] * kept, axis=-1)


def _inverted(lower: mx.array) -> mx.array:
    """Return the inverses of matrices with ones on the diagonal and LOWER below it, by halves."""
    half = lower.shape[-1] // 2
    if not half:
        return mx.ones_like(lower)
    first, last = _inverted(mx.stack([lower[..., :half, :half], lower[..., half:, half:]]))
    corner = -last @ (lower[..., half:, :half] @ first)
    top = mx.concatenate([first, mx.zeros_like(first)], axis=-1)
    return mx.concatenate([top, mx.concatenate([corner, last], axis=-1)], axis=-2)


def _read(*parts: mx.array) -> mx.array:
    """Go from chunk to chunk with the state, shape ``(batch, heads, key features, value features)``."""
    state, found = mx.array(0.0), []
    for new, replaced, asked, inside, kept, decayed in zip(*map(mx.unstack, parts), strict=True):
        state = mx.broadcast_to(state, (*kept.shape[:-1], new.shape[-1]))
        own = new - replaced @ state
        found.append(asked @ state + inside @ own)
        state = state * decayed + kept @ own
    return joined(found)
