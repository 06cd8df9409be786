"""Operations that no output needs, assertions among them, and constants that nothing uses."""

from __future__ import annotations

from ..census import live_nodes
from .draft import Draft


def remove_dead_code(draft: Draft) -> None:
    """Remove what does not reach an output."""
    live = set(live_nodes(draft.graph))
    for node in reversed(draft.calls()):
        if node not in live:
            draft.graph.erase_node(node)
    used = {node.name for node in live}
    draft.constants = {name: held for name, held in draft.constants.items() if name in used}
