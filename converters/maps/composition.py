"""Compose two maps into one: names that meet are unified, axes that meet are substituted.

Rule by rule: where a name on the right of the first map and one on the left of the second can spell
the same tensor, the two rules make one of the composed map. A rule with several tensors in the
middle meets one rule per tensor, each with a single tensor on either side.
"""

from __future__ import annotations

from ...errors import UnsupportedError
from .rules import Drop, Pairing, Rule, Tie
from .weightmap import WeightMap

_ = (UnsupportedError, Drop, Pairing, Rule, Tie)


def compose(first: WeightMap, second: WeightMap) -> WeightMap:
    """Return the map that leads through FIRST and then through SECOND."""
    raise UnsupportedError(f"{first.name} then {second.name}: not yet")
