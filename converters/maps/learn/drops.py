"""What becomes of tensors that a class leaves out: computed by the model, equal to another, or lost."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ...checkpoints.base import Header
from ..notation.names import Capture, Name
from ..notation.rules import Drop, Rule, Tie

# Buffers that a model computes from its configuration when it is built, by the end of their names.
RECOMPUTED: Final = re.compile(
    r"(?:^|\.)(?:(?:rotary_emb|rope|rotary_pos_emb|rotary)\.(?:\w+_)?inv_freq|rotary_emb\.(?:cos|sin)_cached"
    r"|inv_freq|masked_bias|(?:attn|attention|self_attn)\.bias|position_ids|num_batches_tracked"
    r"|causal_mask|relative_position_index)$"
)
HEADS: Final = re.compile(r"(?:^|\.)(?:lm_head|output|embed_out|score_head)\.weight$")
EMBEDDINGS: Final = re.compile(
    r"(?:^|\.)(?:embed_tokens|wte|word_embeddings|embeddings|tok_embeddings|embed_in|embedding)\.weight$"
)


def drop_rules(
    dropped: Sequence[str], headers: Mapping[str, Header], config: Mapping[str, Any]
) -> dict[str, Rule]:
    """Return a rule for each group of DROPPED tensors, by the first tensor of the group.

    A tied head equals the embedding; a subtree of which nothing is kept is one rule.
    """
    rules: dict[str, Rule] = {}
    lost = []
    for name in dropped:
        if (original := tied_to(name, dropped, headers, config)) is not None:
            rules[name] = Tie(Name((name,)), Name((original,)))
        elif RECOMPUTED.search(name) and not _is_attention_weight(name, headers):
            rules[name] = Drop(Name((name,)), "recomputed")
        else:
            lost.append(name)
    for name, rule in _subtrees(lost, headers):
        rules.setdefault(name, rule)
    return rules


def _is_attention_weight(name: str, headers: Mapping[str, Header]) -> bool:
    """Return whether ``attn.bias`` is a vector, which is learned, and no mask."""
    return name.endswith(".bias") and len(headers[name].shape) == 1


def tied_to(
    name: str, dropped: Sequence[str], headers: Mapping[str, Header], config: Mapping[str, Any]
) -> str | None:
    """Return the embedding that the head NAME equals by CONFIG, ``None`` if there is none."""
    if not HEADS.search(name) or not is_tied(config):
        return None
    gone = set(dropped)
    found = [
        other
        for other, header in headers.items()
        if other not in gone and header == headers[name] and EMBEDDINGS.search(other)
    ]
    return found[0] if len(found) == 1 else None


def is_tied(config: Mapping[str, Any]) -> bool:
    """Return whether CONFIG, or the part for the text in it, ties the head to the embedding."""
    inner = config.get("text_config")
    own = config.get("tie_word_embeddings")
    if own is None and isinstance(inner, Mapping):
        own = inner.get("tie_word_embeddings")
    return own is not False


def _subtrees(lost: Sequence[str], headers: Mapping[str, Header]) -> Iterator[tuple[str, Rule]]:
    """Yield one rule for each largest subtree in which all tensors are LOST."""
    gone = set(lost)
    kept = {prefix for name in headers if name not in gone for prefix in prefixes(name)}
    members: dict[str, list[str]] = {}
    for name in lost:
        top = next((prefix for prefix in prefixes(name) if prefix not in kept), name)
        members.setdefault(top, []).append(name)
    for top, names in members.items():
        parts = (top,) if names == [top] else (f"{top}.", Capture("", deep=True))
        if len(names) == 1:
            parts = (names[0],)
        yield names[0], Drop(Name(parts), "original")


def prefixes(name: str) -> Iterator[str]:
    """Yield NAME up to each of its dots, the shortest first.

    >>> list(prefixes("a.b.c"))
    ['a', 'a.b']
    """
    at = name.find(".")
    while at >= 0:
        yield name[:at]
        at = name.find(".", at + 1)
