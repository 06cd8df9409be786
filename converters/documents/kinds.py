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
        infinite: whether ``Infinity`` stands for a number, as Python's own JSON writes it.
    """

    what: str
    largest: int
    todo: str
    infinite: bool = False


# transformers 4 writes the open end of `time_step_limit` as Infinity; NaN is never meant.
CONFIG: Final = Kind("configuration", 64 * MEGABYTE, "correct it, or download it again", True)
TOKENIZER: Final = Kind("tokenizer", 512 * MEGABYTE, "download it again", True)
INDEX: Final = Kind("index", 100 * MEGABYTE, "download or save it again")
RECORD: Final = Kind("record of Weighbridge", 512 * MEGABYTE, "remove it, or make it again", True)
LINE: Final = Kind("line", 16 * MEGABYTE, "correct it")
ANSWER: Final = Kind("answer", 512 * MEGABYTE, "try again", True)
SETTINGS: Final = Kind("configuration", 64_000, "correct it")
