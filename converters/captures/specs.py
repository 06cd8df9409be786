"""What a caller says about a capture, in no framework's terms."""

from __future__ import annotations

from typing import NamedTuple


class AdapterSpec(NamedTuple):
    """An adapter to insert.

    Attributes:
        rank: of the update.
        scale: its factor (PEFT's ``alpha / r``).
        dora: whether the lengths of the rows are trained apart (DoRA).
    """

    rank: int
    scale: float = 1.0
    dora: bool = False
