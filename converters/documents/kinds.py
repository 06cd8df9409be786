"""Kinds of documents: how large each may be, and what to do about one that is damaged."""

from __future__ import annotations

from typing import Final, NamedTuple

MEGABYTE: Final = 1_000_000


class Kind(NamedTuple):
    """What is expected of a document.

    Attributes:
        what: what it is, in a message.
        largest: bytes that are read at most.
        todo: what to do about one that is damaged.
        constants: those of Python's own JSON that stand for numbers.
    """

    what: str
    largest: int
    todo: str
    constants: tuple[str, ...] = ()


_INFINITE: Final = ("Infinity", "-Infinity")
_ALL: Final = ("NaN", *_INFINITE)

# transformers 4 writes the open end of `time_step_limit` as Infinity; NaN is never meant.
CONFIG: Final = Kind("configuration", 64 * MEGABYTE, "correct it, or download it again", _INFINITE)
TOKENIZER: Final = Kind("tokenizer", 512 * MEGABYTE, "download it again", _INFINITE)
INDEX: Final = Kind("index", 100 * MEGABYTE, "download or save it again")
RECORD: Final = Kind("record of Weighbridge", 512 * MEGABYTE, "remove it, or make it again", _ALL)
LINE: Final = Kind("line", 16 * MEGABYTE, "correct it")
ANSWER: Final = Kind("answer", 512 * MEGABYTE, "try again", _ALL)
SETTINGS: Final = Kind("configuration", 64_000, "correct it")
