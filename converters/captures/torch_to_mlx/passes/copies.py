"""Copies, aliases and slices of everything: in MLX, values never change, so a copy is the value."""

from __future__ import annotations

from typing import Any, Final

from ..sites import sites_of
from .draft import Draft, is_call, recorded

WHOLE: Final = 2**62  # torch writes an open end of a slice as the largest integer
SAME: Final = ("clone.default", "alias.default", "contiguous.default", "lift_fresh_copy.default")


def remove_copies(draft: Draft) -> None:
    """Take what is copied; a copy that a submodule returns stays."""
    for node in draft.calls():
        if (is_call(node, *SAME) or _is_whole(node)) and not sites_of(node):
            source: Any = node.args[0]
            if recorded(source) is not None:
                draft.replace(node, source)


def _is_whole(node: Any) -> bool:
    """Tell whether NODE is a slice from the beginning to the end."""
    if not is_call(node, "slice.Tensor"):
        return False
    given: list[Any] = [*node.args, *(0, 0, WHOLE, 1)[len(node.args) - 1 :]]
    start, end, step = given[2:]
    open_end = end is None or (isinstance(end, int) and end >= WHOLE)
    return bool(start in {0, None} and step == 1 and open_end)
