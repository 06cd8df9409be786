"""What a caller says about a capture, in no framework's terms."""

from __future__ import annotations

from typing import NamedTuple


class AdapterSpec(NamedTuple):
    """An adapter to insert: its rank, and the factor of its update (PEFT's ``alpha / r``)."""

    rank: int
    scale: float = 1.0
