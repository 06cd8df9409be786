"""The record of a run: one JSON object per line, whole lines only."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from ...converters.documents import RECORD, parse_object, read_bytes
from ...errors import BadInputError

Record = dict[str, Any]


def read_records(path: Path) -> list[Record]:
    """Return the records in PATH; a last line cut off by a kill is not one.

    Raises:
        BadInputError: another line is not a record.
    """
    if not path.exists():
        return []
    whole = read_bytes(path, RECORD).rpartition(b"\n")[0]
    rows = enumerate(whole.split(b"\n") if whole else (), 1)
    return [_record(line, f"{path}, line {number}") for number, line in rows]


def _record(line: bytes, where: str) -> Record:
    record = parse_object(line, where, RECORD)
    if type(record.get("step")) is not int:
        raise BadInputError(f"{where}: says no step; {RECORD.todo}")
    validation = record.get("validation", {})
    measured = [record.get("loss"), *validation.values()] if isinstance(validation, dict) else [""]
    if not all(value is None or isinstance(value, int | float) for value in measured):
        raise BadInputError(f"{where}: its loss or validation is no number; {RECORD.todo}")
    return record


class Journal:
    """Appends records to a file and to a list, each at once.

    Args:
        path: the file.
        until: records of later steps are dropped first, since they will be written again.
        due: so are those of this step that are not of its update.
    """

    def __init__(self, path: Path, until: int, *, due: bool = False) -> None:
        self.records = [
            record
            for record in read_records(path)
            if record["step"] < until + ("loss" in record or not due)
        ]
        self._path = path
        staged = path.with_name(f".{path.name}")
        staged.write_text("".join(map(_line, self.records)), encoding="utf-8")
        staged.replace(path)

    def append(self, record: Record) -> None:
        """Write RECORD; a number that is not finite becomes null, which JSON can say."""
        self.records.append(append_record(self._path, record))


def append_record(path: Path, record: Record) -> Record:
    """Write RECORD at the end of PATH; return it with null for what is not finite."""
    clean: Record = _finite(record)
    with path.open("a", encoding="utf-8") as file:
        file.write(_line(clean))
    return clean


def _line(record: Record) -> str:
    return json.dumps(record, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
