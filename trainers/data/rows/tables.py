"""Rows of a file, whatever its format: read, checked all together, divided between splits."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from ....converters.common.contents import JSON, TEXT, require
from ....converters.common.os_errors import explained
from ....converters.documents import LINE, parse_json, parse_object
from ....errors import BadInputError, MismatchError
from .formats import read_dataset, suffix_of

if TYPE_CHECKING:
    from ..context import Context

PLAIN: Final = frozenset({"JSON lines", JSON, TEXT, "empty"})  # what is read as JSON lines
SHOWN: Final = 20  # bad rows named in one error
SUFFIXES: Final = frozenset({".jsonl", ".ndjson", ".json"})  # of files of rows that are read here
TEXTS: Final = frozenset({".csv", ".tsv"})  # of files whose cells are all texts
WHOLE: Final = LINE._replace(what="list", largest=512 * LINE.largest)
Row = Mapping[str, Any]
Taken = TypeVar("Taken")


class Refused(str):
    """What is wrong with a row, in place of what it holds."""

    __slots__ = ()


class Table(NamedTuple):
    """The rows of a file.

    Attributes:
        path: of the file.
        rows: each with its place, such as ``line 3``; what could not be read says why.
        columns: what all rows have; ``None`` where each may have others.
    """

    path: Path
    rows: Iterable[tuple[str, Row | Refused]]
    columns: tuple[str, ...] | None = None

    def having(self, *ways: Mapping[str, str]) -> Table:
        """Return this table, which has the columns of one of WAYS: what each is for, and its name here.

        Raises:
            BadInputError: it has not; names the nearest column.
        """
        missing = [
            {key: name for key, name in way.items() if name not in self.columns}
            for way in ways
            if self.columns is not None
        ]
        if missing and all(missing):
            key, name = next(iter(min(missing, key=len).items()))
            near = difflib.get_close_matches(name, self.columns or (), n=1)
            is_it = f"is it {near[0]}? " if near else ""
            hint = f"; {is_it}--set data.columns.{key}={near[0] if near else 'COLUMN'}"
            known = ", ".join(self.columns or ())
            raise BadInputError(f"{self.path}: no column {name} among {known}{hint}")
        return self


def is_table(path: Path) -> bool:
    """Say whether PATH is a file of rows, or a folder that ``datasets`` saved."""
    return path.suffix.lower() in SUFFIXES or suffix_of(path) != ""


def read_table(path: Path, wanted: str, numbers: Sequence[str] = ()) -> Table:
    """Return the rows of the file at PATH, whatever its format.

    Args:
        path: JSON lines, a JSON list, or what :mod:`.formats` reads; by its suffix, or JSON lines.
        wanted: what it should be, for an error.
        numbers: columns that are numbers where a format knows nothing but texts.

    Raises:
        BadInputError: it cannot be read.
    """
    if suffix_of(path):
        found = read_dataset(path)
        texts = numbers if path.suffix.lower() in TEXTS else ()
        return Table(path, _rows(found, texts), tuple(found.column_names))
    require(path, wanted, PLAIN)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise BadInputError(explained(error, path) or str(error)) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise BadInputError(
            f"{path}: line {line}: {error.reason}; save the file as UTF-8"
        ) from None
    if path.suffix.lower() == ".json" and text.lstrip().startswith("["):
        return Table(path, _entries(parse_json(text, path, WHOLE)))
    return Table(path, _objects(text.split("\n")))


def _rows(dataset: Any, numbers: Sequence[str]) -> Iterator[tuple[str, Row]]:
    """Yield the rows of DATASET; the columns NUMBERS are read as such where all cells are."""
    cast = {name: _numbers(dataset[name]) for name in numbers if name in dataset.column_names}
    for number, row in enumerate(dataset):
        own = {name: column[number] for name, column in cast.items() if column}
        yield f"row {number + 1}", row | own


def _numbers(cells: Iterable[str]) -> list[int] | list[float] | None:
    """Return CELLS as whole numbers, or as numbers with empty cells as NaN; ``None`` if they are none.

    >>> _numbers(["1", "2"]), _numbers(["1", ""]), _numbers(["1", "b"])
    ([1, 2], [1.0, nan], None)
    """
    texts = list(cells)
    with suppress(ValueError):
        return [int(text) for text in texts]
    with suppress(ValueError):
        return [float(text or "nan") for text in texts]
    return None


def _entries(content: Any) -> Iterator[tuple[str, Row | Refused]]:
    for number, entry in enumerate(content, 1):
        row = entry if isinstance(entry, dict) else Refused("no JSON object")
        yield f"entry {number}", row


def _objects(lines: Iterable[str]) -> Iterator[tuple[str, Row | Refused]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row: Row | Refused = parse_object(line, "", LINE)
        except BadInputError as error:
            row = Refused(str(error).removeprefix(": ").removesuffix(f"; {LINE.todo}"))
        yield f"line {number}", row


def taken(
    table: Table, take: Callable[[Row], Taken | Refused], wanted: str
) -> list[tuple[str, Taken]]:
    """Return the place of every row of TABLE and what TAKE makes of it.

    Raises:
        MismatchError: rows that could not be read, or that TAKE refuses; names the first of them, or what
            is wrong with all.
    """
    found: list[tuple[str, Taken]] = []
    bad: list[tuple[str, Refused]] = []
    for place, row in table.rows:
        value = row if isinstance(row, Refused) else take(row)
        if isinstance(value, Refused):
            bad.append((place, value))
        else:
            found.append((place, value))
    same = {words for _, words in bad}
    if len(bad) > 1 and len(same) == 1 and not found:
        bad = [(f"all {len(bad)} rows", bad[0][1])]
    refuse([f"{place}: {words}" for place, words in bad], f"{table.path} is not {wanted}")
    return found


def refuse(problems: Sequence[str], summary: str) -> None:
    """Raise the first of PROBLEMS, if there are any, with the number of the others."""
    if problems:
        more = [f"and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
        raise MismatchError(summary, [*problems[:SHOWN], *more])


def part_of(rows: Sequence[Taken], context: Context, path: Path) -> Sequence[Taken]:
    """Return those of ROWS, read from PATH, that belong to the split of CONTEXT.

    Raises:
        BadInputError: none does.
    """
    share = context.share
    chosen = rows if share is None else [rows[number] for number in share.of(len(rows))]
    if not chosen:
        too_few = "" if share is None else f": {len(rows)} in all are too few to divide"
        raise BadInputError(f"{path}: no example for this split{too_few}")
    return chosen


def number_of(row: Row, name: str) -> float | Refused | None:
    """Return the number in column NAME of ROW, ``None`` where there is none."""
    value = row.get(name)
    if value is None or (isinstance(value, int | float) and math.isfinite(value)):
        return None if value is None else float(value)
    return Refused(f"{name} {value!r} is no number")


def lacking(row: Row, wanted: Sequence[str]) -> Refused:
    """Return what to say of ROW, in which none of the columns WANTED holds a text."""
    near = next((it for name in wanted for it in difflib.get_close_matches(name, row, n=1)), None)
    hint = f"; is it {near}?" if near and near not in wanted else ""
    return Refused(f"no text {' and '.join(wanted)}{hint}")
