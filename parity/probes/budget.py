"""Probes cut to as many tokens as a model's size allows: large models are read whole for few."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .signals import Layout

LEAST: Final = 16  # tokens that a probe is worth


def tokens_of(layout: Layout) -> int:
    """Return how many places for tokens LAYOUT has, padding among them."""
    return len(layout.lengths) * max(layout.lengths)


def within(layouts: Sequence[Layout], tokens: int | None) -> list[Layout]:
    """Return LAYOUTS, if they have more than TOKENS the smallest, and the first that does not fit made shorter.

    >>> [it.lengths for it in within([Layout("a", (9,)), Layout("b", (80, 40)), Layout("c", (99,))], 89)]
    [(9,), (80,)]
    """
    if tokens is None or sum(map(tokens_of, layouts)) <= tokens:
        return [*layouts]
    left, chosen = tokens, list[Layout]()
    for layout in sorted(layouts, key=tokens_of):
        share = min(1.0, left / tokens_of(layout))
        lengths = tuple(max(1, int(length * share)) for length in layout.lengths)
        cut = layout._replace(lengths=lengths)
        if share == 1 or tokens_of(cut) >= LEAST:
            chosen.append(cut)
            left -= tokens_of(cut)
    return chosen
