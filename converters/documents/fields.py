"""Types of the fields of a document, as data, and which values are of another type."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from .flaws import refuse, shown
from .json_text import read_optional
from .kinds import CONFIG, Kind

LONGEST_NAME: Final = 200  # characters of a class or of a kind of model
ENTRIES: Final = 3  # of one field that are named, if they are wrong


class Field(NamedTuple):
    """What a field may be, besides null.

    Attributes:
        what: that, in words.
        fits: says whether a value is.
        entry: what every entry of it may be, where it is a list or an object.
        parts: what those of its entries may be that are read, where it is an object.
    """

    what: str
    fits: Callable[[Any], bool]
    entry: Field | None = None
    parts: Mapping[str, Field] | None = None


def whole(most: int, least: int = 0) -> Field:
    """Return the field of a whole number from LEAST to MOST.

    >>> [whole(9).fits(value) for value in (9, 10, -1, True, 3.0)]
    [True, False, False, False, False]
    """
    span = f"a whole number from {least:,} to {most:,}"
    return Field(span, lambda value: type(value) is int and least <= value <= most)


def either(*fields: Field) -> Field:
    """Return the field of what fits one of FIELDS."""
    what = " or ".join(field.what for field in fields)
    return Field(what, lambda value: any(not wrong(value, field) for field in fields))


def listing(entry: Field) -> Field:
    """Return the field of a list of ENTRY."""
    return Field("a list", lambda value: isinstance(value, list), entry)


def mapping(entry: Field | None = None) -> Field:
    """Return the field of an object of ENTRY."""
    return Field("an object", lambda value: isinstance(value, dict), entry)


def record(parts: Mapping[str, Field]) -> Field:
    """Return the field of an object with PARTS."""
    return Field("an object", lambda value: isinstance(value, dict), None, parts)


TEXT: Final = Field("a text", lambda value: isinstance(value, str))
FLAG: Final = Field("true or false", lambda value: isinstance(value, bool))
NUMBER: Final = Field(
    "a number below a billion", lambda value: type(value) in (int, float) and abs(value) < 10**9
)
NAME: Final = Field(
    f"a name of at most {LONGEST_NAME} characters",
    lambda value: isinstance(value, str) and len(value) <= LONGEST_NAME and value.isprintable(),
)


_ID: Final = whole(2**31 - 1, -1)
IDS: Final = either(_ID, listing(_ID))


def read_fields(path: Path, fields: Mapping[str, Field], kind: Kind = CONFIG) -> dict[str, Any]:
    """Return the JSON object in the file at PATH, empty where there is none.

    Raises:
        BadInputError: it is damaged, or values that FIELDS names are none of these; names all.
    """
    document = read_optional(path, kind)
    refuse(mismatches(document, fields), path, kind)
    return document


def mismatches(
    document: Mapping[str, Any], fields: Mapping[str, Field], place: str = ""
) -> Iterator[str]:
    """Yield what is wrong with those values of DOCUMENT, found at PLACE, that FIELDS names."""
    for key, field in fields.items():
        value = document.get(key)
        if value is not None:
            for inner, found, wanted in wrong(value, field)[:ENTRIES]:
                yield f"{place}{key}{inner} is {quoted(found)}, expected {wanted.what}"


def wrong(value: Any, field: Field) -> list[tuple[str, Any, Field]]:
    """Return what does not fit FIELD: where in VALUE it is, what is there, and what should be."""
    if not field.fits(value):
        return [("", value, field)]
    return [
        (f"[{key!r}]{inner}", found, wanted)
        for key, entry, expected in _inside(value, field)
        for inner, found, wanted in wrong(entry, expected)
    ]


def _inside(value: Any, field: Field) -> Iterator[tuple[Any, Any, Field]]:
    """Yield what is in VALUE, with its key and the field that it must fit."""
    for name, part in (field.parts or {}).items():
        if value.get(name) is not None:
            yield name, value[name], part
    if field.entry is not None:
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            yield key, entry, field.entry


def quoted(value: Any) -> str:
    """Return VALUE as a message quotes it.

    >>> quoted("1"), quoted([1]), quoted(2.5)
    ("'1'", 'a list', '2.5')
    """
    return repr(value[:LONGEST_NAME]) if isinstance(value, str) else shown(value)
