"""Losses none of whose classes can be the one to ignore: they are told so, and mask nothing.

Masks are kernels to compile and to run. Classes are known where they are constants, count from 0 on, or are
ids that the model looks up too, which are no negative numbers.
"""

from __future__ import annotations

from typing import Any, Final

from torch.fx import Node

from ..operations.layers.losses import NEVER
from .draft import Draft, is_call, recorded, schema_arguments

LOSSES: Final = (
    "cross_entropy_loss.default",
    "nll_loss_nd.default",
    "nll_loss.default",
    "nll_loss2d.default",
)
COPIES: Final = ("clone.default", "_to_copy.default", "_unsafe_view.default")
WHOLE: Final = ("view.default", "reshape.default", "unsqueeze.default", "alias.default", *COPIES)


def count_every_target(draft: Draft) -> None:
    """Let losses ignore nothing where their targets are never the class to ignore."""
    lookups = [node for node in draft.calls() if is_call(node, "embedding.default")]
    looked_up = {_whole(node.args[1]) for node in lookups}
    for node in draft.calls():
        if is_call(node, *LOSSES):
            given = schema_arguments(node)
            source = _source(given["target"])
            if _without(draft, source, given["ignore_index"], source in looked_up):
                _count_all(node)


def _count_all(node: Any) -> None:
    names = [argument.name for argument in node.target._schema.arguments]
    place = names.index("ignore_index")
    if place < len(node.args):
        node.update_arg(place, NEVER)
    else:
        node.update_kwarg("ignore_index", NEVER)


def _without(draft: Draft, source: Any, ignored: Any, looked_up: bool) -> bool:
    """Tell whether SOURCE, classes, never has IGNORED among its values."""
    value = recorded(source)
    if value is None or value.is_floating_point() or not isinstance(ignored, int):
        return False
    if source.name in draft.constants:
        return not bool((draft.constants[source.name] == ignored).any())
    return ignored < 0 and (looked_up or _counts_up(source))


def _counts_up(node: Any) -> bool:
    """Tell whether NODE holds a, a + b, a + 2 b, ... for numbers a from 0 on and b above 0."""
    if is_call(node, "arange.default"):
        return True
    if not is_call(node, "arange.start", "arange.start_step"):
        return False
    start, step = node.args[0], (node.args[2:] or (1,))[0]
    return type(start) is int and type(step) is int and start >= 0 < step


def _source(node: Any) -> Any:
    """Return what NODE shows, wholly or in part."""
    while isinstance(node, Node) and (is_call(node, *COPIES) or _is_view(node)):
        node = node.args[0]
    return node


def _is_view(node: Any) -> bool:
    schema = getattr(node.target, "_schema", None)
    if schema is None or len(schema.returns) != 1:
        return False
    shown = schema.returns[0].alias_info
    return bool(shown and not shown.is_write)


def _whole(node: Any) -> Any:
    """Return what NODE shows all of, in another shape."""
    while is_call(node, *WHOLE):
        node = node.args[0]
    return node
