"""Prices and volumes from ``.npz`` files, with a decision about bars that are missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ....converters.checkpoints.formats.npz import NpzFile
from ....converters.common.contents import ZIP, require
from ....converters.values import Array
from ....errors import MismatchError
from .chunks import COLUMNS, features_of, symbols_at_once
from .windows import Windows, ends_of, moves

if TYPE_CHECKING:
    from ...configuration.data import BarsData
    from ..context import Context


def read_split(section: BarsData, path: Path, context: Context) -> Windows:  # noqa: ARG001
    """Read a split: windows of the indicators of all symbols in PATH.

    Raises:
        BadInputError: not such a file, a damaged one, or one without a whole window.
        MismatchError: columns missing, of different shapes, or with numbers that no market has.
    """
    columns = read_columns(path)
    gaps = np.isnan(np.stack([*columns.values()])).any(axis=0)
    problems = [*_problems(columns), *_refused(gaps, section.missing)]
    if problems:
        raise MismatchError(f"{path} does not hold prices and volumes to learn from", problems)
    ends = ends_of(gaps.shape[1], section, str(path))
    filled = fill(columns, gaps)
    at_once = symbols_at_once(gaps.shape[1], section.memory_limit_mb, section.symbols_per_chunk)
    labels = moves(filled["close"], section.horizon, section.threshold)
    left_out = gaps if section.missing == "drop" else np.zeros_like(gaps)
    windows = Windows(features_of(filled, at_once), labels, left_out, section, ends)
    windows.report["missing_bars"] = int(gaps.sum())
    return windows


def read_columns(path: Path) -> dict[str, Array]:
    """Return open, high, low, close and volume of PATH, in float64 of shape ``(symbols, bars)``.

    Raises:
        BadInputError: not such a file, or a damaged one.
        MismatchError: columns missing, not of numbers, or of different shapes.
    """
    require(path, f"a NumPy archive (.npz) with the arrays {', '.join(COLUMNS)}", {ZIP})
    file = NpzFile(path, COLUMNS)
    found = {name: file.read(name) for name in file.headers}
    problems = [f"{name} is missing" for name in COLUMNS if name not in found]
    problems += [
        f"{name}: {array.dtype}{[*array.shape]} is no array of numbers by symbol and bar"
        for name, array in found.items()
        if array.dtype.kind not in "iuf" or array.ndim != 2 or not array.size
    ]
    if len({array.shape for array in found.values()}) > 1:
        problems.append(f"different shapes: { {name: it.shape for name, it in found.items()} }")
    if problems:
        raise MismatchError(f"{path} does not hold prices and volumes to learn from", problems)
    return {name: found[name].astype(np.float64) for name in COLUMNS}


def _problems(columns: Mapping[str, Array]) -> Iterator[str]:
    """Yield what no market has."""
    for name, array in columns.items():
        if bad := int(np.isinf(array).sum()):
            yield f"{name}: {bad} of {array.size} numbers are infinite"
        least = "below 0" if name == "volume" else "0 or below"
        if bad := int((array < 0 if name == "volume" else array <= 0).sum()):
            yield f"{name}: {bad} of {array.size} numbers are {least}"
    if bad := int((columns["high"] < columns["low"]).sum()):
        yield f"high is below low in {bad} bars"
    if bad := int(np.isnan(columns["close"]).all(axis=1).sum()):
        yield f"{bad} symbols have no close at all"


def _refused(gaps: Array, missing: str) -> Iterator[str]:
    if missing == "refuse" and gaps.any():
        yield (
            f"{int(gaps.sum())} of {gaps.size} bars are missing (NaN): --set data.missing=replace takes"
            " them as bars without trade, data.missing=drop leaves windows with them out"
        )


def fill(columns: Mapping[str, Array], gaps: Array) -> dict[str, Array]:
    """Return COLUMNS with the bars in GAPS as bars without trade: the close before them, volume 0.

    Bars before the first one of a symbol have its close.
    """
    places = np.where(gaps, 0, np.arange(gaps.shape[1]))
    first = np.argmin(gaps, axis=1)[:, None]
    last = np.maximum(np.maximum.accumulate(places, axis=1), first)
    close = np.take_along_axis(columns["close"], last, axis=1)
    return {
        name: np.where(gaps, 0.0 if name == "volume" else close, array)
        for name, array in columns.items()
    }
