"""Connectionist temporal classification (Graves et al. 2006): a loss over all alignments, in logarithms."""

from __future__ import annotations

import math
from typing import Final

import mlx.core as mx

from ..gradients import where, with_gradient
from ..registry import operation

IMPOSSIBLE: Final = (
    -1e30
)  # the logarithm of 0: finite, so that gradients of what cannot happen are 0


_lost = with_gradient(  # torch's gradient of what cannot happen, whatever comes after it
    lambda own, gone: mx.where(gone, math.inf, mx.zeros_like(own)),
    lambda g, _result, _own, gone: (mx.where(gone, math.nan, mx.zeros_like(g)), None),
)


def _labels(targets: mx.array, lengths: mx.array) -> mx.array:
    """Return the labels of each sequence in a row; 1-d TARGETS are those of all, one after another."""
    if targets.ndim == 2:
        return targets
    starts = mx.cumsum(lengths) - lengths
    places = starts[:, None] + mx.arange(targets.size)
    return targets[mx.minimum(places, targets.size - 1)]


def _with_blanks(labels: mx.array, blank: int, classes: int) -> mx.array:
    """Return LABELS, shape ``(batch, labels)``, with a blank before, between and behind them."""
    known = mx.clip(labels, 0, classes - 1)  # behind the end of a sequence anything may stand
    pairs = mx.stack([mx.full(known.shape, blank, known.dtype), known], axis=-1)
    return mx.pad(pairs.reshape(len(known), -1), [(0, 0), (0, 1)], constant_values=blank)


def _behind(paths: mx.array, steps: int) -> mx.array:
    """Return the paths that end so many STEPS before."""
    length = paths.shape[1]
    return mx.pad(paths, [(0, 0), (steps, 0)], constant_values=IMPOSSIBLE)[:, :length]


def _paths(emitted: mx.array, states: mx.array, lengths: mx.array) -> tuple[mx.array, mx.array]:
    """Return the logarithms of all paths that end in each of STATES, above the largest, and that.

    EMITTED has shape ``(time, batch, states)`` (equation 6; a label may follow another that differs).
    Small logarithms round less.
    """
    changed = mx.pad(states[:, 2:] != states[:, :-2], [(0, 0), (2, 0)])[:, : states.shape[1]]
    first = mx.arange(states.shape[1]) < 2
    paths, above = mx.where(first, emitted[0], IMPOSSIBLE), mx.zeros((len(states), 1))
    for time in range(1, len(emitted)):
        moved = mx.logaddexp(paths, _behind(paths, 1))
        jumped = mx.where(changed, _behind(paths, 2), IMPOSSIBLE)
        following = mx.maximum(mx.logaddexp(moved, jumped) + emitted[time], IMPOSSIBLE)
        paths = mx.where((time < lengths)[:, None], following, paths)
        top = mx.stop_gradient(mx.max(paths, axis=1, keepdims=True))
        paths, above = mx.maximum(paths - top, IMPOSSIBLE), above + top
    return paths, above[:, 0]


@operation("weighbridge::ctc_loss")
def _ctc_loss(
    log_probs: mx.array,
    targets: mx.array,
    input_lengths: mx.array,
    target_lengths: mx.array,
    blank: int,
    zero_infinity: bool,
) -> mx.array:
    """Return the loss of each sequence; too short for its labels it is infinite, or 0 by ZERO_INFINITY.

    The gradient is torch's: that of the softmax from which LOG_PROBS are, so they get their own
    probabilities beside those of the labels.
    """
    wide = log_probs.astype(mx.float32)
    states = _with_blanks(_labels(targets, target_lengths), blank, wide.shape[-1])
    wanted = mx.broadcast_to(states, (len(wide), *states.shape))
    paths, above = _paths(mx.take_along_axis(wide, wanted, axis=2), states, input_lengths)
    last = 2 * target_lengths[:, None]
    ends = mx.take_along_axis(
        paths, mx.concatenate([last, mx.maximum(last - 1, 0)], axis=1), axis=1
    )
    total = mx.where(target_lengths == 0, ends[:, 0], mx.logaddexp(ends[:, 0], ends[:, 1]))
    heard = mx.arange(len(wide))[:, None] < input_lengths
    own = mx.sum(where(heard[..., None], mx.exp(wide), 0), axis=(0, 2))
    happens = own - mx.stop_gradient(own) - total - above
    gone = total <= IMPOSSIBLE / 10
    loss = where(gone, 0, happens)
    loss = loss if zero_infinity else loss + _lost(own, gone)
    return loss.astype(log_probs.dtype)
