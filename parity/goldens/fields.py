"""``golden.json``: what each field may be, so that a damaged one is named before anything is run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ...converters.documents.fields import TEXT, Field, either, listing, mapping, record, whole
from ..text.phrases import TEXTS, character_blocks

SIZE: Final = whole(2**48)
DTYPES: Final = frozenset(
    (
        "bool",
        "float16",
        "float32",
        "float64",
        "bfloat16",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
    )
)
DTYPE: Final = Field("a dtype", lambda value: isinstance(value, str) and value in DTYPES)
NUMBER: Final = Field("a number", lambda value: type(value) in (int, float))
PAIR: Final = Field(
    "a name and a size",
    lambda value: (
        isinstance(value, list) and len(value) == 2 and SIZE.fits(value[1]) and TEXT.fits(value[0])
    ),
)
PORT: Final = record(
    {
        **dict.fromkeys(("name", "role"), TEXT),
        "dtype": DTYPE,
        "shape": listing(either(TEXT, SIZE)),
        "upper": listing(PAIR),
    }
)
SKETCH: Final = record(
    {
        **dict.fromkeys(("dtype", "rows"), TEXT),
        "shape": listing(SIZE),
        "hashes": mapping(TEXT),
        **dict.fromkeys(("moments", "projections"), listing(NUMBER)),
    }
)


def _rows(count: int, what: str, entry: Field) -> Field:
    return Field(
        f"{what} of {count} texts",
        lambda value: isinstance(value, list) and len(value) == count,
        entry,
    )


def _some(field: Field) -> Field:
    return Field(
        f"{field.what}, or an empty list",
        lambda value: value == [] or field.fits(value),
        field.entry,
    )


IDS: Final = listing(SIZE)
TEXT_IDS: Final = _rows(len(TEXTS), "ids", IDS)
READING: Final = record(
    {
        "ids": TEXT_IDS,
        "starts": _some(TEXT_IDS),
        "decoded": _rows(len(TEXTS), "decoded text", _rows(2, "ways to decode", TEXT)),
        "tokens": mapping(IDS),
        "characters": _rows(len(list(character_blocks())), "hashes", TEXT),
        "pair": mapping(IDS),
        "entries": mapping(listing(TEXT)),
        "spelled": listing(TEXT),
        **dict.fromkeys(("skipped", "pipeline", "chats"), mapping(TEXT)),
        **dict.fromkeys(("added", "special"), mapping(SIZE)),
        **dict.fromkeys(("settings", "batch"), mapping()),
    }
)
SIDE: Final = record(
    {
        "readings": mapping(READING),
        "generation": mapping(),
        "documents": mapping(mapping()),
        **dict.fromkeys(("vocabularies", "files"), mapping(TEXT)),
    }
)
FIELDS: Final[Mapping[str, Field]] = {
    **dict.fromkeys(("spec", "level"), TEXT),
    "signature": record({"inputs": listing(PORT), "outputs": listing(PORT)}),
    "probes": listing(record({"name": TEXT})),
    "errors": mapping(listing(mapping(listing(NUMBER)))),
    "text": SIDE,
    "provenance": mapping(),
    "sketches": mapping(SKETCH),
    "same": mapping(TEXT),
}
