"""Series and their targets: rows of arrays."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import xxhash

from ...converters.checkpoints.formats.npz import NpzFile
from ...converters.common.contents import ZIP, require
from ...converters.values import Array
from ...errors import BadInputError, MismatchError
from .batches import Batch, narrowed
from .rows.tables import is_table, part_of, read_table, taken

if TYPE_CHECKING:
    from ..configuration.data import SeriesData
    from .context import Context

LABELS: Final = "labels"  # the input that stays a whole number where it is one
ANSWERS: Final = frozenset({LABELS, "target"})  # what is never made up
UNFIT: Final = "does not hold the series that the run needs"


def read_arrays(path: Path, names: Sequence[str]) -> dict[str, Array]:
    """Read the arrays NAMES of an ``.npz`` file, or columns of a table, all of one first size.

    Raises:
        BadInputError: not such a file, or a damaged one.
        UnsupportedError: one of the arrays holds texts, or other than numbers.
        MismatchError: arrays missing, not numbers or of different first sizes.
    """
    wanted = f"a NumPy archive (.npz) or a table with the arrays {', '.join(names)}"
    found, known = (
        _columns(path, names, wanted) if is_table(path) else _archive(path, names, wanted)
    )
    problems = [problem for name in names for problem in _problems(name, found, known)]
    sizes = {name: len(found[name]) for name in names if name in found and found[name].ndim}
    if len(set(sizes.values())) > 1:
        problems.append(f"different numbers of examples: {sizes}")
    if problems:
        raise MismatchError(f"{path} {UNFIT}", problems)
    return {name: found[name] for name in names}


def _archive(
    path: Path, names: Sequence[str], wanted: str
) -> tuple[dict[str, Array], Sequence[str]]:
    """Return those of the arrays NAMES that an archive has, and the names of all."""
    require(path, wanted, {ZIP})
    file = NpzFile(path, names)
    return {name: file.read(name) for name in file.headers}, file.names


def _columns(
    path: Path, names: Sequence[str], wanted: str
) -> tuple[dict[str, Array], Sequence[str]]:
    """Return those of the columns NAMES that a table has, and the names of the first row's."""
    rows = [row for _, row in taken(read_table(path, wanted, names), lambda row: row, wanted)]
    known = list(rows[0]) if rows else []
    return {name: _array([row.get(name) for row in rows]) for name in names if name in known}, known


def _array(cells: list[Any]) -> Array:
    """Return CELLS as one array, with NaN where there is nothing; of objects where they are no numbers."""
    try:
        found = np.array(cells)
        return found if found.dtype.kind != "O" else np.array(cells, np.float64)
    except (ValueError, TypeError):
        return np.empty(len(cells), object)


def read_split(section: SeriesData, path: Path, context: Context) -> Series:
    """Read a split: the arrays of PATH under the names that SECTION gives them.

    Raises:
        BadInputError: it cannot be read, or nothing is left.
        MismatchError: arrays that are missing, or numbers that are not what they should be.
    """
    arrays = read_arrays(path, list(section.columns.values()))
    rows = part_of(range(len(next(iter(arrays.values())))), context, path)
    own = {name: arrays[source][rows] for name, source in section.columns.items()}
    wanted = {name: _dtype(name, array, section.dtypes) for name, array in own.items()}
    if problems := [line for name in own for line in _unlike(name, own[name], wanted[name])]:
        raise MismatchError(f"{path} {UNFIT}", problems)
    with np.errstate(over="ignore"):
        cast = {name: array.astype(wanted[name]) for name, array in own.items()}
    clean, counts = _finite(cast, section.nan, path)
    return Series(clean, counts)


def _dtype(name: str, array: Array, asked: Mapping[str, str]) -> str:
    whole = name == LABELS and array.dtype.kind in "iu"
    return asked.get(name, "int64" if whole else "float32")


def _unlike(name: str, array: Array, dtype: str) -> list[str]:
    """Return how many numbers of ARRAY no whole number is, where DTYPE asks for them."""
    if np.dtype(dtype).kind not in "iu" or array.dtype.kind in "iu":
        return []
    bad = int((array != np.floor(array)).sum())
    return [f"{name}: {bad} of {array.size} numbers are not whole, for {dtype}"] if bad else []


def _finite(
    arrays: Mapping[str, Array], policy: str, path: Path
) -> tuple[dict[str, Array], dict[str, int]]:
    """Return ARRAYS without what is not finite, by the POLICY, and counts of what was done.

    Raises:
        MismatchError: there is such a number, and it is refused, or it would be an answer.
        BadInputError: no example is left.
    """
    bad = {name: ~np.isfinite(array) for name, array in arrays.items()}
    refused = [
        name for name in bad if policy == "refuse" or (policy == "replace" and name in ANSWERS)
    ]
    problems = [
        f"{name}: {int(bad[name].sum())} of {bad[name].size} numbers are not finite"
        for name in refused
        if bad[name].any()
    ]
    if problems:
        hint = (
            " (see data.nan)" if policy == "refuse" else " (data.nan: drop leaves out the examples)"
        )
        raise MismatchError(f"{path} {UNFIT}{hint}", problems)
    if policy == "replace":
        count = sum(int(them.sum()) for them in bad.values())
        return {name: np.where(bad[name], 0, it).astype(it.dtype) for name, it in arrays.items()}, {
            "replaced": count
        }
    rows = np.any([them.reshape(len(them), -1).any(1) for them in bad.values()], axis=0)
    if rows.all():
        raise BadInputError(f"{path}: every example has a number that is not finite")
    counts = {"dropped": int(rows.sum())} if policy == "drop" else {}
    return {name: it[~rows] for name, it in arrays.items()}, counts


class Series:
    """Rows of arrays; see :class:`~weighbridge.trainers.data.batches.Dataset`.

    Args:
        arrays: by the names of the objective's inputs, all of one first size.
        counts: what was done about numbers that are not finite.
    """

    def __init__(self, arrays: dict[str, Array], counts: Mapping[str, int] = {}) -> None:
        self.arrays = arrays
        self._rows = len(next(iter(arrays.values())))
        self.report = {"examples": self._rows, **counts}
        digest = xxhash.xxh3_128()
        for name, array in arrays.items():
            digest.update(f"{name}{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        self.digest = digest.hexdigest()

    def __len__(self) -> int:
        """Return the number of examples."""
        return self._rows

    def batch(self, rows: Sequence[int]) -> Batch:
        """Return the examples ROWS of every array."""
        inputs = {name: narrowed(array[list(rows)]) for name, array in self.arrays.items()}
        return Batch(inputs, len(rows), sum(array.size for array in inputs.values()))

    def length(self, row: int) -> int:  # noqa: ARG002 - all rows are alike
        """Return 0: every row of an array is as long as the others."""
        return 0

    def keys(self, row: int) -> tuple[Hashable, ...]:  # noqa: ARG002 - all rows are alike
        """Return nothing: any two examples may meet."""
        return ()


def _problems(name: str, found: dict[str, Array], names: Sequence[str]) -> list[str]:
    if name not in found:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"; is it {near[0]}?" if near else ""
        return [f"{name} is missing; the file has {', '.join(sorted(names)) or 'nothing'}{hint}"]
    array = found[name]
    if array.dtype.kind not in "iuf" or not array.ndim:
        return [f"{name}: {array.dtype}{list(array.shape)} is not an array of numbers by example"]
    return []
