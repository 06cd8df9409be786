"""Rows of a file, whatever its format: read, checked all together, divided between splits."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from ....converters.common.contents import JSON, TEXT, require
from ....converters.documents import LINE, parse_object
from ....errors import BadInputError, MismatchError

if TYPE_CHECKING:
    from ..context import Context

PLAIN: Final = frozenset({"JSON lines", JSON, TEXT, "empty"})  # what is read as JSON lines
SHOWN: Final = 20  # bad rows named in one error
SUFFIXES: Final = frozenset({".jsonl", ".ndjson", ".json"})  # of files of rows
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
    """

    path: Path
    rows: Iterable[tuple[str, Row | Refused]]


def read_table(path: Path, wanted: str) -> Table:
    """Return the rows of the file at PATH; WANTED says in an error what it should be.

    Raises:
        BadInputError: it cannot be read.
    """
    require(path, wanted, PLAIN)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"{path}: cannot read {wanted}: {error}") from None
    return Table(path, _objects(lines))


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
        MismatchError: rows that could not be read, or that TAKE refuses; names the first of them.
    """
    found: list[tuple[str, Taken]] = []
    problems: list[str] = []
    for place, row in table.rows:
        value = row if isinstance(row, Refused) else take(row)
        if isinstance(value, Refused):
            problems.append(f"{place}: {value}")
        else:
            found.append((place, value))
    refuse(problems, f"{table.path} is not {wanted}")
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
