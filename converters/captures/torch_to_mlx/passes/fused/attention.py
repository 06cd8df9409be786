"""Attention in the forms for which MLX has a fast kernel.

A mask that is the causal one, or hides nothing, at every size becomes a word; any other is made ready
once for all layers; and keys and values that were repeated for groups of queries are taken as they are.
"""

from __future__ import annotations

import operator
from typing import Any, Final

import torch
from torch.fx import Node

from ..draft import Draft, is_call, recorded, schema_arguments
from ..forms import ATTENTION, ATTENTION_MASK
from ..masks import CAUSAL, COPIES, All, Value, value_of

MOVES: Final = (
    *COPIES,
    "permute.default",
    "transpose.int",
    "unsqueeze.default",
    "view.default",
)
ATTEND = torch.ops.aten.scaled_dot_product_attention.default


def fuse_attention(draft: Draft) -> None:
    """Rewrite every attention of the graph."""
    known: dict[Node, Value] = {}
    ready: dict[Any, tuple[Node, Node]] = {}
    for node in draft.calls():
        if node.target is ATTEND:
            _rewrite(draft, node, known, ready)


def _rewrite(
    draft: Draft, node: Any, known: dict[Node, Value], ready: dict[Any, tuple[Node, Node]]
) -> None:
    given = schema_arguments(node)
    query, key, value = (given[name] for name in ("query", "key", "value"))
    key, value = _unrepeated(key, value)
    mask, dropout, scale = (given[name] for name in ("attn_mask", "dropout_p", "scale"))
    causal = given["is_causal"] or _facts(mask, known) == {CAUSAL}
    if mask is None or causal or _facts(mask, known) == set():
        fused = draft.add(node, ATTEND, query, key, value, None, dropout, causal)
        fused.kwargs = {"scale": scale, "enable_gqa": True}
    else:
        like = recorded(query)
        added, alive = (mask, None) if _is_bias(mask, like) else _ready(draft, mask, like, ready)
        fused = draft.add(node, ATTENTION, query, key, value, added, alive, dropout, scale)
    draft.replace(node, fused)


def _is_bias(mask: Any, like: Any) -> bool:
    """Tell whether MASK is a looked up parameter and nothing else, so hides nothing, in LIKE's dtype."""
    node = mask
    while is_call(node, *MOVES):
        node = node.args[0]
    looked_up = is_call(node, "embedding.default") and node.args[0].name.startswith("p_")
    return looked_up and mask.meta["val"].dtype == like.dtype


def _facts(mask: Any, known: dict[Node, Value]) -> set[str] | None:
    value = value_of(mask, known)
    return set(value.facts) if isinstance(value, All) else None


def _ready(
    draft: Draft, mask: Any, query: Any, ready: dict[Any, tuple[Node, Node]]
) -> tuple[Node, Node]:
    """Return what MASK adds to scores, and which queries see any key, made where MASK is."""
    place = mask, query.dtype
    if place not in ready:
        added, alive = (mask.meta["val"], mask.meta["val"].any(-1, keepdim=True))
        values = added.to(query.dtype), alive.to(query.dtype)
        pair = draft.add(mask.next, ATTENTION_MASK, mask, query.dtype, val=values)
        pair.meta["nn_module_stack"] = mask.meta.get("nn_module_stack", {})
        parts = [
            draft.add(pair.next, operator.getitem, pair, i, val=value)
            for i, value in enumerate(values)
        ]
        ready[place] = parts[0], parts[1]
    return ready[place]


def _unrepeated(key: Any, value: Any) -> tuple[Node, Node]:
    """Return KEY and VALUE before they were repeated for each query of a group, if both were."""
    sources = _source(key), _source(value)
    if sources[0] is None or sources[1] is None:
        return key, value
    heads = [source.meta["val"].shape[1] for source in sources if source]
    return (sources[0], sources[1]) if heads[0] == heads[1] else (key, value)


def _source(node: Any) -> Any:
    """Return x where NODE is x with every head repeated in place."""
    if is_call(node, "repeat_interleave.self_int") and node.args[2:] == (1,):
        return node.args[0]
    if not is_call(node, "view.default", "_unsafe_view.default", "reshape.default"):
        return None
    below = node.args[0]
    while is_call(below, "clone.default", "contiguous.default"):
        below = below.args[0]
    if not is_call(below, "expand.default") or not is_call(below.args[0], "unsqueeze.default"):
        return None
    source, axis = below.args[0].args
    value, wide = recorded(source), recorded(below)
    fits = value is not None and wide is not None and value.ndim == 4 and axis == 2
    return source if fits and _heads(node) == wide.shape[1] * wide.shape[2] else None


def _heads(node: Any) -> Any:
    shape = node.meta["val"].shape
    return shape[1] if len(shape) == 4 else None
