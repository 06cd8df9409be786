"""JSON, read within limits."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any, Final

from ...errors import BadInputError
from .files import decoded, read_bytes
from .flaws import DEPTH, DIGITS, TOO_DEEP, Flaw, depth_of, flaws, name_of, named_twice, refuse
from .kinds import CONFIG, Kind

# Whether a text may hold what takes a look at every value: long numbers, halves of characters, and
# the whole number -0, for which Python has no value (other readers refuse it, or read a float).
_ODD: Final = re.compile(rf"\d{{{DIGITS + 1}}}|\\u[dD][89a-fA-F]|-0[,\]}}\s]")


def read_json(path: Path, kind: Kind = CONFIG) -> Any:
    """Return the JSON value in the file at PATH.

    Raises:
        BadInputError: it is too large, not JSON, or JSON that nobody means; says where.
        OSError: it cannot be read.
    """
    return parse_json(read_bytes(path, kind), path, kind)


def read_object(path: Path, kind: Kind = CONFIG) -> dict[str, Any]:
    """Return the JSON object in the file at PATH; fails as ``read_json`` does, and on other values."""
    return parse_object(read_bytes(path, kind), path, kind)


def read_optional(path: Path, kind: Kind = CONFIG) -> dict[str, Any]:
    """Return the JSON object in the file at PATH, empty where there is none; fails as ``read_object``."""
    return read_object(path, kind) if path.is_file() else {}


def parse_object(text: bytes | str, where: object, kind: Kind = CONFIG) -> dict[str, Any]:
    """Return the JSON object that TEXT is; fails as ``parse_json`` does, and on other values."""
    content = parse_json(text, where, kind)
    if not isinstance(content, dict):
        found = f"expected a JSON object, found {name_of(content)}"
        raise BadInputError(f"{where}: {found}; {kind.todo}")
    return content


def parse_json(text: bytes | str, where: object, kind: Kind = CONFIG) -> Any:
    """Return the JSON value that TEXT, from WHERE, is.

    Raises:
        BadInputError: it is not JSON, or JSON that nobody means: keys named twice, numbers that are not
            finite or have more than ``DIGITS`` digits, halves of characters, nested above ``DEPTH``.
    """
    text = decoded(text, where, kind) if isinstance(text, bytes) else text
    odd = _ODD.search(text) is not None
    parser = _Parser(kind)
    try:
        value = parser.parse(text, odd)
    except json.JSONDecodeError as error:
        what = f"not JSON ({error.msg}: line {error.lineno}, column {error.colno})"
        raise BadInputError(f"{where}: {what}; {kind.todo}") from None
    except RecursionError:
        raise BadInputError(f"{where}: {TOO_DEEP}; {kind.todo}") from None
    if odd or parser.flawed or depth_of(value) > DEPTH:
        refuse(flaws(value, kind), where, kind)
    return value


class _Parser:
    """Python's own parser, which puts a ``Flaw`` where a value would not be what its writer meant."""

    def __init__(self, kind: Kind) -> None:
        self.kind, self.flawed = kind, False

    def parse(self, text: str, odd: bool) -> Any:
        return json.loads(
            text,
            object_pairs_hook=self._object,
            parse_constant=self._constant,
            parse_float=self._float,
            parse_int=self._integer if odd else None,
        )

    def _flaw(self, flaw: Flaw) -> Flaw:
        self.flawed = True
        return flaw

    def _object(self, pairs: list[tuple[str, Any]]) -> Any:
        found = dict(pairs)
        return found if len(found) == len(pairs) else self._flaw(named_twice(pairs))

    def _constant(self, text: str) -> Any:
        meant = text in self.kind.constants
        return float(text) if meant else self._flaw(Flaw(f"{text} is not a number"))

    def _float(self, text: str) -> Any:
        value = float(text)
        return value if math.isfinite(value) else self._flaw(Flaw(f"{text} is too large a number"))

    def _integer(self, text: str) -> Any:
        if text == "-0":
            return self._flaw(Flaw("-0 is not a whole number"))
        digits = len(text.lstrip("-"))
        return int(text) if digits <= DIGITS else self._flaw(Flaw(f"a number of {digits:,} digits"))
