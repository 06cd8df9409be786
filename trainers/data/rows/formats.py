"""Tables that Hugging Face's ``datasets`` reads: CSV, Parquet, Arrow, and folders that it saved."""

from __future__ import annotations

import csv
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir
from typing import Any, Final

from ....converters.common import cache
from ....errors import BadInputError

SAVED: Final = "state.json"  # in a folder that ``Dataset.save_to_disk`` wrote
SPLITS: Final = "dataset_dict.json"  # in one of several splits, each a folder
STREAM: Final = b"\xff\xff\xff\xff"  # the begin of an Arrow stream; an Arrow file begins otherwise


def suffix_of(path: Path) -> str:
    """Return which reader of ``READERS`` the file or folder at PATH is for, empty if none is."""
    if path.is_dir():
        return SAVED if (path / SAVED).is_file() else ""
    return path.suffix.lower() if path.suffix.lower() in READERS else ""


def read_dataset(path: Path) -> Any:
    """Return the table at PATH as a ``datasets.Dataset``, mapped into memory.

    Cells of a CSV table are texts: nobody guesses whether ``NA`` is one.

    Raises:
        BadInputError: the library is not installed, or cannot read it.
    """
    try:
        import datasets
    except ImportError:
        raise BadInputError(
            f"{path}: this format is read by the library datasets; pip install 'weighbridge[train]'"
        ) from None
    try:
        with _quiet(datasets):
            return READERS[suffix_of(path)](datasets, path)
    except Exception as error:
        reason = (str(error.__cause__ or error).splitlines() or [type(error).__name__])[0]
        raise BadInputError(f"{path}: cannot read the table ({reason})") from None


@contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    """Keep the library from writing to the terminal."""
    before = datasets.logging.get_verbosity()
    bars = datasets.is_progress_bar_enabled()
    datasets.logging.set_verbosity(logging.CRITICAL + 1)
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.logging.set_verbosity(before)
        if bars:
            datasets.enable_progress_bars()


def _kept() -> str:
    """Return where the library keeps what it has read."""
    return str((cache.folder() or Path(gettempdir()) / "weighbridge") / "datasets")


def _csv(datasets: Any, path: Path, separator: str = ",") -> Any:
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, delimiter=separator)
        names, empty = next(rows, []), next(rows, None) is None
    if not names:
        raise ValueError("no line with the names of the columns")
    if empty:
        raise ValueError("no row below the names of the columns")
    if len(names) == 1 and separator == "," and ";" in names[0]:
        # As spreadsheets write it where a comma begins the decimals.
        return _csv(datasets, path, ";")
    features = datasets.Features({name: datasets.Value("string") for name in names})
    options = {"features": features, "keep_default_na": False, "sep": separator}
    return datasets.Dataset.from_csv(str(path), cache_dir=_kept(), **options)


def _parquet(datasets: Any, path: Path) -> Any:
    return datasets.Dataset.from_parquet(str(path), cache_dir=_kept())


def _arrow(datasets: Any, path: Path) -> Any:
    with path.open("rb") as file:
        streamed = file.read(len(STREAM)) == STREAM
    if streamed:
        return datasets.Dataset.from_file(str(path))
    import pyarrow

    return datasets.Dataset(pyarrow.ipc.open_file(pyarrow.memory_map(str(path))).read_all())


READERS: Final[Mapping[str, Callable[[Any, Path], Any]]] = {
    ".csv": _csv,
    ".tsv": lambda datasets, path: _csv(datasets, path, "\t"),
    ".parquet": _parquet,
    ".arrow": _arrow,
    ".feather": _arrow,
    SAVED: lambda datasets, path: datasets.load_from_disk(str(path)),
}
