"""What a job is doing, reported step by step to whoever listens: an ordinary logger.

The command line shows it on stderr. A program sees it with
``logging.getLogger("weighbridge.converters.common.steps").setLevel(logging.INFO)`` and a handler.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

LOGGER: Final = logging.getLogger(__name__)
LOGGER.addHandler(logging.NullHandler())
Item = TypeVar("Item")


def step(what: str) -> None:
    """Report that WHAT begins; it ends where the next step does."""
    LOGGER.info("%s", what)


def each(what: str, items: Sequence[Item]) -> Iterator[Item]:
    """Yield ITEMS, and report of which of them WHAT begins.

    >>> list(each("checking: probe", "ab"))
    ['a', 'b']
    """
    for number, item in enumerate(items, 1):
        step(f"{what} {number} of {len(items)}")
        yield item
