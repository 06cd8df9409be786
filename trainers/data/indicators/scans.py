"""Windows and recurrences over time in whole-array steps, the same bits for any number of symbols.

Arrays have shape ``(symbols, bars)``. Nothing here is a matrix product and no row meets another one, so what
is computed for a symbol does not depend on which others are computed with it.
"""

from __future__ import annotations

import mlx.core as mx


def delayed(x: mx.array, bars: int) -> mx.array:
    """Return X as it was BARS before, and 0 where there was nothing yet."""
    kept = x[:, : max(0, x.shape[1] - bars)]
    return mx.pad(kept, [(0, 0), (x.shape[1] - kept.shape[1], 0)])


def after(missing: int, x: mx.array) -> mx.array:
    """Return X behind MISSING bars for which there is no value (NaN)."""
    return mx.pad(x, [(0, 0), (missing, 0)], constant_values=float("nan"))


def rolling_moments(x: mx.array, bars: int) -> tuple[mx.array, mx.array]:
    """Return mean and variance (divided by BARS) of every window of BARS, at its last bar.

    Windows of twice the length are made of two neighbours, ``log2(BARS)`` times, with the updating formula of
    Chan, Golub and LeVeque (1979): there is no difference of large sums to lose digits in.

    Args:
        x: shape ``(symbols, bars)``.
        bars: length of the windows, at most that of X.

    Returns:
        Two arrays of X's shape; the first ``bars - 1`` values of each row are NaN.
    """
    whole: tuple[int, mx.array, mx.array] | None = None
    part = (1, x, mx.zeros_like(x))
    left = bars
    while left:
        if left & 1:
            whole = part if whole is None else _joined(whole, part)
        left >>= 1
        if left:
            part = _joined(part, part)
    _, mean, squares = whole or part
    return after(bars - 1, mean[:, bars - 1 :]), after(bars - 1, squares[:, bars - 1 :] / bars)


def _joined(
    late: tuple[int, mx.array, mx.array], early: tuple[int, mx.array, mx.array]
) -> tuple[int, mx.array, mx.array]:
    """Return count, mean and sum of squared deviations of windows LATE with the EARLY ones before them."""
    n, m = late[0], early[0]
    mean, squares = (delayed(it, n) for it in early[1:])
    apart = mean - late[1]
    joined = late[1] + apart * (m / (n + m))
    return n + m, joined, late[2] + squares + apart * apart * (n * m / (n + m))


def decayed_sums(x: mx.array, decay: float) -> mx.array:
    """Return ``y[t] = x[t] + decay * y[t - 1]``, a recurrence over time, in ``log2(bars)`` steps.

    After step k every value holds the terms of the last ``2 ** k`` bars (Kogge and Stone 1973).
    """
    reach, weight = 1, decay
    while reach < x.shape[1] and weight > 1e-30:
        x = x + weight * delayed(x, reach)
        reach, weight = 2 * reach, weight * weight
    return x


def smoothed(x: mx.array, bars: int, weight: float) -> mx.array:
    """Return the exponential mean that begins with the plain mean of the first BARS values.

    ``y[t] = weight * x[t] + (1 - weight) * y[t - 1]`` from bar ``bars`` on; NaN before bar ``bars - 1``.
    """
    first = mx.mean(x[:, :bars], axis=1, keepdims=True)
    return after(
        bars - 1, decayed_sums(mx.concatenate([first, weight * x[:, bars:]], axis=1), 1 - weight)
    )
