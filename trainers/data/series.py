"""Series and their targets: arrays from ``.npz`` files."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from ...converters.checkpoints.formats.npz import NpzFile
from ...converters.common.contents import ZIP, require
from ...converters.values import Array
from ...errors import MismatchError
from .batches import Batch

if TYPE_CHECKING:
    from ..configuration.data import SeriesData
    from .context import Context


def read_arrays(path: Path, names: Sequence[str]) -> dict[str, Array]:
    """Read the arrays NAMES of an ``.npz`` file as float32, all of one first size.

    Raises:
        BadInputError: not such a file, or a damaged one.
        UnsupportedError: one of the arrays holds texts, or other than numbers.
        MismatchError: arrays missing, not numbers, not finite or of different first sizes.
    """
    require(path, f"a NumPy archive (.npz) with the arrays {', '.join(names)}", {ZIP})
    file = NpzFile(path, names)
    found = {name: file.read(name) for name in file.headers}
    problems = [problem for name in names for problem in _problems(name, found, file.names)]
    sizes = {name: len(found[name]) for name in names if name in found and found[name].ndim}
    if len(set(sizes.values())) > 1:
        problems.append(f"different numbers of examples: {sizes}")
    if problems:
        raise MismatchError(f"{path} does not hold the series that the run needs", problems)
    return {name: found[name].astype(np.float32) for name in names}


def read_split(section: SeriesData, path: Path, context: Context) -> Series:  # noqa: ARG001
    """Read a split: the arrays of PATH under the names that SECTION gives them."""
    arrays = read_arrays(path, list(section.columns.values()))
    return Series({name: arrays[source] for name, source in section.columns.items()})


class Series:
    """Rows of arrays; see :class:`~weighbridge.trainers.data.batches.Dataset`."""

    def __init__(self, arrays: dict[str, Array]) -> None:
        self.arrays = arrays
        self._rows = len(next(iter(arrays.values())))
        self.report = {"examples": self._rows}
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
        inputs = {name: array[list(rows)] for name, array in self.arrays.items()}
        return Batch(inputs, len(rows), sum(array.size for array in inputs.values()))

    def length(self, row: int) -> int:  # noqa: ARG002 - all rows are alike
        """Return 0: every row of an array is as long as the others."""
        return 0

    def keys(self, row: int) -> tuple[Hashable, ...]:  # noqa: ARG002 - all rows are alike
        """Return nothing: any two examples may meet."""
        return ()


def _problems(name: str, found: dict[str, Array], names: Sequence[str]) -> list[str]:
    if name not in found:
        return [f"{name} is missing; the file has {', '.join(sorted(names)) or 'nothing'}"]
    array = found[name]
    if array.dtype.kind not in "iuf" or not array.ndim:
        return [f"{name}: {array.dtype}{list(array.shape)} is not an array of numbers by example"]
    bad = int(array.size - np.isfinite(array).sum())
    return [f"{name}: {bad} of {array.size} numbers are not finite"] if bad else []
