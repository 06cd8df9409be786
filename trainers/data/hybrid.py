"""Ranking by words and by meaning together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from ...converters.values import Array
from .retrieval import ranks_of, retrieval_metrics

DENSE: Final = 0.7  # the share of meaning where nothing was tuned
SHARES: Final = tuple(tenth / 10 for tenth in range(11))
WORD: Final = re.compile(r"[A-Za-z][a-z]*|[0-9]+")


def words_of(text: str) -> list[str]:
    """Return the words of TEXT in lower case; names of code are taken apart.

    >>> words_of("readFile(path_name)")
    ['read', 'file', 'path', 'name']
    """
    return [word.lower() for word in WORD.findall(text)]


def lexical_scores(queries: Sequence[str], documents: Sequence[str]) -> Array:
    """Return the BM25 score of each query and document, by the library bm25s: ``(queries, documents)``.

    Robertson and Zaragoza 2009, in the variant of Lucene.
    """
    import bm25s

    index = bm25s.BM25()
    index.index([words_of(text) for text in documents], show_progress=False)
    known = index.vocab_dict
    asked = [[word for word in words_of(text) if word in known] for text in queries]
    none = np.zeros(len(documents), np.float32)
    return np.stack([index.get_scores(words) if words else none for words in asked])


def mixed(dense: Array, lexical: Array, share: float = DENSE) -> Array:
    """Return SHARE of the dense and the rest of the lexical scores, each brought to 0..1 by query."""
    return share * _scaled(dense) + (1 - share) * _scaled(lexical)


def best_share(dense: Array, lexical: Array) -> float:
    """Return the share of the dense scores with the best MRR; for a split that is not the one reported."""
    found = {share: retrieval_metrics(ranks_of(mixed(dense, lexical, share))) for share in SHARES}
    return max(SHARES, key=lambda share: found[share]["mrr"])


def _scaled(scores: Array) -> Array:
    low, high = scores.min(1, keepdims=True), scores.max(1, keepdims=True)
    return np.asarray((scores - low) / np.maximum(high - low, 1e-12))
