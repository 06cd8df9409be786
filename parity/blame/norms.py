"""See through a layer norm: which epsilon it has, and what else reached it.

``y = scale * (x - mean(x)) / sqrt(var(x) + eps) + shift`` per row (Ba et al. 2016); RMS norm leaves
out the mean (Zhang and Sennrich 2019). Scale and shift are fitted, so no weight is needed.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ...converters.values import Array
from .evidence import INPUT, Observation, before, norm

SEEN: Final = 1e-3  # a norm without its epsilon is that near to the norm
ROWS: Final = 4  # fewer, and any scale and shift would do
EPSILONS: Final = (0.0, 1e-12, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)


def epsilon(it: Observation) -> str | None:
    """Another epsilon in a layer norm or RMS norm."""
    for path, x, found, wanted in before(it):
        if x.shape != wanted.shape or len(x) < 4:
            continue
        for name, centre in (("layer norm", True), ("RMS norm", False)):
            fit = _fit_norm(x, wanted, centre=centre)
            if fit is None:
                continue
            variance, right, shift = fit
            wrong = _fit_epsilon(found - shift, wanted - shift, variance + right) + right
            proposed = shift + (wanted - shift) * np.sqrt((variance + right) / (variance + wrong))
            if it.accounts(found, wanted, proposed):
                return f"{name} of {path} with eps {wrong:.2g}, the reference has {right:.2g}"
    return None


def _fit_norm(x: Array, y: Array, *, centre: bool) -> tuple[Array, float, Array] | None:
    """Return variance per row, epsilon and shift if Y is a norm of X (Ba et al. 2016)."""
    x = x - x.mean(axis=1, keepdims=True) if centre else x
    variance = np.mean(x**2, axis=1, keepdims=True)
    fits = []
    for right in EPSILONS:
        z = x / np.sqrt(variance + max(right, 1e-300))
        scale, shift = _per_channel(z, y)
        fits.append((norm(y - scale * z - shift), right, shift))
    gap, right, shift = min(fits, key=lambda fit: fit[0])
    return (variance, right, shift) if gap <= 1e-6 * norm(y) else None


def of_another(it: Observation) -> str | None:
    """What another norm of the model would make of what a norm receives, whose output is expected."""
    found, wanted = it.pair
    beside = [path for path in it.recording if it.recording.get(path + INPUT) is not None]
    beside = [path for path in beside if _alike(it, path)]
    here = next(
        (path for path in beside if np.array_equal(it.rows(it.recording[path]), wanted)), ""
    )
    for centre in (True, False) if here and len(wanted) >= ROWS else ():
        mine = _as_norm(it, here, centre=centre)
        for path in beside if mine else ():
            other = _as_norm(it, path, centre=centre) if path != here else None
            if mine and other and it.accounts(found, wanted, other[1] * mine[0] + other[2]):
                return (
                    f"{path} norms what {here} does in the reference: one in the place of another"
                )
    return None


def _alike(it: Observation, path: str) -> bool:
    shapes = {it.recording[path].shape, it.recording[path + INPUT].shape, it.wanted.shape}
    return len(shapes) == 1


def _as_norm(it: Observation, path: str, *, centre: bool) -> tuple[Array, Array, Array] | None:
    """Return what PATH receives without its length, and scale and shift, if PATH is a norm."""
    x, y = (it.rows(it.recording[name]) for name in (path + INPUT, path))
    fit = _fit_norm(x, y, centre=centre)
    if fit is None:
        return None
    variance, right, _ = fit
    x = x - x.mean(axis=1, keepdims=True) if centre else x
    z = x / np.sqrt(variance + max(right, 1e-300))
    return z, *_per_channel(z, y)


def _per_channel(z: Array, y: Array) -> tuple[Array, Array]:
    mean_z, mean_y = z.mean(axis=0), y.mean(axis=0)
    spread = np.sum((z - mean_z) ** 2, axis=0)
    scale = np.sum((z - mean_z) * (y - mean_y), axis=0) / np.maximum(spread, 1e-300)
    return scale, mean_y - scale * mean_z


def branch_before(it: Observation) -> str | None:
    """Another share of a recorded value in what reaches a layer norm, seen through the norm.

    The norm hides mean and length of a row, not its direction: ``x + c p`` must lie along what the
    output implies, which is linear in c.
    """
    entered = it.inputs.get(it.site + INPUT)
    if entered is None or entered.shape != it.wanted.shape:
        return None
    found, wanted = it.pair
    x = it.rows(entered)
    fit = _fit_norm(x, wanted, centre=True)
    if fit is None:
        return None
    _, right, shift = fit
    for path, array in it.recording.items():
        if array.shape != entered.shape or path == it.site + INPUT:
            continue
        part = it.rows(array)
        share = _share_before(x, part, (found - shift) * _ratio(_unit_rows(x), wanted - shift))
        proposed = _renormed(x, x + share * part, wanted - shift, right) + shift
        if it.accounts(found, wanted, proposed):
            return (
                f"as if {share:+.4g} times {path} were added to what {it.site} receives:"
                f" that branch has factor {1 + share:.4g}"
            )
    return None


def _unit_rows(x: Array) -> Array:
    centred = x - x.mean(axis=1, keepdims=True)
    return np.asarray(centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-300))


def _ratio(x: Array, y: Array) -> Array:
    """Return per channel what Y, a scaled X, must be multiplied by to give X."""
    return np.asarray(np.sum(x * y, axis=0) / np.maximum(np.sum(y * y, axis=0), 1e-300))


def _share_before(x: Array, part: Array, direction: Array) -> float:
    direction = _unit_rows(direction)
    across = [
        rows - np.sum(rows * direction, axis=1, keepdims=True) * direction
        for rows in (x - x.mean(axis=1, keepdims=True), part - part.mean(axis=1, keepdims=True))
    ]
    return -float(np.sum(across[0] * across[1]) / max(norm(across[1]) ** 2, 1e-300))


def _renormed(x: Array, moved: Array, scaled: Array, right: float) -> Array:
    """Return SCALED, the norm of X without its shift, as it would be for MOVED."""
    before, after = (
        (rows - rows.mean(axis=1, keepdims=True)) / np.sqrt(rows.var(axis=1, keepdims=True) + right)
        for rows in (x, moved)
    )
    scale_ = np.sum(before * scaled, axis=0) / np.maximum(np.sum(before**2, axis=0), 1e-300)
    return np.asarray(after * scale_)


def _fit_epsilon(found: Array, wanted: Array, total: Array) -> float:
    """Return the epsilon to add to TOTAL = variance + epsilon, by the rows where it shows most."""
    shrink = np.sum(found * wanted, axis=1) / np.maximum(np.sum(wanted**2, axis=1), 1e-300)
    added = total[:, 0] * (1 / np.maximum(shrink, 1e-9) ** 2 - 1)
    weight = 1 / total[:, 0] ** 2  # the same noise in `shrink` moves epsilon by total
    return float(np.sum(weight * added) / np.sum(weight))


def channels(it: Observation) -> str | None:
    """Another scale and shift for each channel of an image that the reference scales and shifts so."""
    x = it.inputs.get(it.site + INPUT)
    if x is None or x.ndim < 4 or x.shape != it.wanted.shape or x.shape != it.found.shape:
        return None
    rows, (found, wanted) = it.rows(x), it.pair
    scale, shift = _per_channel(rows, wanted)
    if len(rows) < ROWS or norm(scale * rows + shift - wanted) > SEEN * norm(wanted):
        return None
    factors, shift = _per_channel(wanted, found)
    if not it.accounts(found, wanted, factors * wanted + shift):
        return None
    return (
        f"each channel has a factor of its own, {factors.min():.4g} to {factors.max():.4g}: a batch norm with"
        " another epsilon, or with the statistics of its batch as in training mode"
    )


def groups(it: Observation) -> str | None:
    """Groups of channels that take turns in a group norm, as MLX's are unless told otherwise."""
    x = it.inputs.get(it.site + INPUT)
    if x is None or x.ndim < 3 or x.shape != it.wanted.shape or x.shape != it.found.shape:
        return None
    x, wanted = (np.asarray(a, np.float64).reshape(*a.shape[:2], -1) for a in (x, it.wanted))
    for count in (n for n in range(2, x.shape[1]) if x.shape[1] % n == 0):
        beside = _grouped(x, np.arange(x.shape[1]) * count // x.shape[1])
        fit = _per_channel(*(a.swapaxes(1, 2).reshape(-1, a.shape[1]) for a in (beside, wanted)))
        scale, shift = (one[:, None] for one in fit)
        if norm(beside * scale + shift - wanted) > SEEN * norm(wanted):
            continue
        turns = (_grouped(x, np.arange(x.shape[1]) % count) * scale + shift).reshape(
            it.wanted.shape
        )
        if it.accounts(*it.pair, it.rows(turns)):
            return (
                f"its {count} groups are channels that take turns, the reference's lie side by side:"
                " pytorch_compatible=True in mlx.nn.GroupNorm"
            )
    return None


def _grouped(x: Array, group: Array) -> Array:
    """Return X, ``(batch, channels, rest)``, without mean and length of each GROUP of channels."""
    made = np.empty_like(x)
    for number in range(int(group.max()) + 1):
        part = x[:, group == number]
        centred = part - part.mean(axis=(1, 2), keepdims=True)
        size = np.sqrt(np.mean(centred**2, axis=(1, 2), keepdims=True))
        made[:, group == number] = centred / np.maximum(size, 1e-300)
    return made
