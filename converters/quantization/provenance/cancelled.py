"""Whether scales found in a weight are undone by another tensor, so that the model computes the same.

AWQ (Lin et al. 2023, section 3.2) multiplies the columns of a weight by scales and divides by them
what comes before: a norm, or the rows of another weight. What was scaled and has no such partner is
another model, however well the codes fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from .scaling import Fit, Vector

LEFT: Final = 0.5  # of what rounding does to a weight: scales smaller than that are not seen in it
TRIED: Final = 12  # tensors that a scale is looked for in, those of the same block first
ERRORS: Final = 2.0  # standard errors that two scales of the same may lie apart
LEAST: Final = 1e-3  # scales below that, negative ones too, are what no recipe has


class Side(NamedTuple):
    """Logarithms of the scales of the rows or the columns, one line a matrix.

    ``noise`` is what rounding did to the weight, relative; ``variances`` is how exactly each scale
    is known through that: what is small was lost in rounding. ``biases`` are squares of what coarse
    rounding, which makes zeros of what is small, takes from a scale: about its relative square.
    """

    logs: Vector
    variances: Vector
    biases: Vector
    noise: float

    def inverse(self, shift: Vector | None = None) -> Side:
        """Return what cancels these scales, after each line is multiplied by ``exp(SHIFT)``."""
        shift = np.zeros(len(self.logs)) if shift is None else shift
        return self._replace(logs=-(self.logs + shift[:, None]))


class Scaled(NamedTuple):
    """The scales of a weight, or of each matrix of a stack; their product is what counts."""

    rows: Side
    columns: Side


class Rest(NamedTuple):
    """What is left of scales without what cancels them: a mean and a variance for each matrix.

    ``expected`` is the variance that rounding alone leaves.
    """

    mean: Vector
    variance: Vector
    expected: Vector
    noise: float


ONES: Final = Side(np.zeros((1, 1)), np.zeros((1, 1)), np.zeros((1, 1)), 0.0)


def scaled(fits: Sequence[Fit], noise: float) -> Scaled:
    """Return the FITS of the matrices of a weight that differs by NOISE after they are undone."""
    values = [it.rows.size * it.columns.size for it in fits]
    rows = _side([it.rows for it in fits], [it.row_errors for it in fits], noise, values[0])
    columns = [it.columns for it in fits], [it.column_errors for it in fits]
    return Scaled(rows, _side(*columns, noise, values[0]))


def _side(scales: Sequence[Vector], errors: Sequence[Vector], noise: float, values: int) -> Side:
    """Return a side of matrices of so many VALUES, with the variances ERRORS."""
    variances = np.stack(errors)
    return Side(_logs(scales), variances, (variances * values / len(scales[0])) ** 2, noise)


def vector(ratio: Vector, noise: float) -> Side:
    """Return what a dense vector that was multiplied by RATIO, known up to NOISE, asks of columns."""
    exact = np.zeros((1, len(ratio)))
    return Side(_logs([ratio]), exact + (noise / 4) ** 2, exact, noise).inverse()


def _logs(scales: Sequence[Vector]) -> Vector:
    return np.asarray(np.log(np.maximum(np.stack(scales), LEAST)))


def uncancelled(
    names: Iterable[str], weights: Mapping[str, Scaled], vectors: Mapping[str, Sequence[Side]]
) -> set[str]:
    """Return those of NAMES, among WEIGHTS, whose scales nothing cancels.

    VECTORS are the dense ones that were scaled. A partner has as many rows as the weight has columns,
    or the other way round; where its own rows and columns are both scaled, a norm tells them apart.
    """
    return {name for name in names if not _cancelled(name, weights, vectors)}


def _cancelled(
    name: str, weights: Mapping[str, Scaled], vectors: Mapping[str, Sequence[Side]]
) -> bool:
    rows, columns = weights[name]
    partners = _near(name, [it for it in weights if it != name])
    above = [
        side
        for it in _fitting(partners, {it: weights[it].rows for it in partners}, columns)
        for side in _rows_of(it, weights[it], vectors)
    ]
    below = [
        side
        for it in _fitting(partners, {it: weights[it].columns for it in partners}, rows)
        for side in _columns_of(weights[it])
    ]
    norms = _norms(name, columns, vectors)
    down = [_rest(columns, it) for it in (ONES, *norms, *above)]
    across = [_rest(rows, it) for it in (ONES, *below)]
    return any(_none_left(one, other) for one in across for other in down)


def _rows_of(name: str, weight: Scaled, vectors: Mapping[str, Sequence[Side]]) -> Iterator[Side]:
    """Yield what cancels the rows of WEIGHT, whose columns no weight or a norm accounts for."""
    for norm in (ONES, *_norms(name, weight.columns, vectors)):
        rest = _rest(weight.columns, norm)
        if _none_left(rest):
            yield weight.rows.inverse(rest.mean)


def _columns_of(weight: Scaled) -> Iterator[Side]:
    """Yield what cancels the columns of WEIGHT, if its rows are as they were."""
    rest = _rest(weight.rows, ONES)
    if _none_left(rest):
        yield weight.columns.inverse(rest.mean)


def _norms(name: str, columns: Side, vectors: Mapping[str, Sequence[Side]]) -> list[Side]:
    size = columns.logs.shape[-1]
    fitting = [it for it, sides in vectors.items() if sides and sides[0].logs.shape[-1] == size]
    return [side for it in _near(name, fitting)[:TRIED] for side in vectors[it]]


def _fitting(names: Sequence[str], sides: Mapping[str, Side], wanted: Side) -> list[str]:
    return [it for it in names if sides[it].logs.shape == wanted.logs.shape][:TRIED]


def _rest(found: Side, wanted: Side) -> Rest:
    """Return what is left of the scales FOUND where those WANTED were put in.

    The more exactly both are known, the more one counts.
    """
    variances = found.variances + wanted.variances
    with np.errstate(divide="ignore"):
        known = 1 / (variances + found.biases + wanted.biases)
    total = known.sum(axis=-1, keepdims=True)
    weights = np.divide(known, total, out=np.zeros_like(known), where=total > 0)
    apart = found.logs - wanted.logs
    mean = (weights * apart).sum(axis=-1)
    variance = (weights * (apart - mean[:, None]) ** 2).sum(axis=-1)
    expected = (weights * np.where(weights > 0, variances, 0)).sum(axis=-1)
    return Rest(mean, variance, expected, max(found.noise, wanted.noise))


def _none_left(one: Rest, other: Rest | None = None) -> bool:
    """Whether ONE varies no more than rounding hides; with OTHER, both, and the factor of the whole."""
    square, expected, noise = one.variance, one.expected, one.noise
    if other is not None:
        square = square + other.variance + (one.mean + other.mean) ** 2
        expected, noise = expected + other.expected, max(noise, other.noise)
    allowed = (LEFT * noise) ** 2 + ERRORS**2 * np.mean(expected)
    return bool(np.mean(square) <= allowed)


def _near(name: str, others: Iterable[str]) -> list[str]:
    """Return OTHERS, those that share most of the path of NAME first."""
    path = name.split(".")
    return sorted(others, key=lambda it: -shared(path, it.split(".")))


def shared(path: Sequence[str], other: Sequence[str]) -> int:
    """Count the leading parts that two paths have in common."""
    pairs = enumerate(zip(path, other, strict=False))
    return next((place for place, (one, two) in pairs if one != two), min(len(path), len(other)))
