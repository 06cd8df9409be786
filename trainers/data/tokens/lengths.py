"""Texts that are longer than the model takes: cut, split or refused; and texts packed into blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ..rows.tables import refuse
from .forms import IGNORED, Coded


class Limit(NamedTuple):
    """How long a text may be, and what is done about longer ones.

    Attributes:
        length: tokens.
        too_long: ``cut``, ``split`` or ``refuse``.
        closed: whether a text keeps its last token as it is cut, a special one.
    """

    length: int
    too_long: str
    closed: bool = False


def fitted(texts: Iterable[tuple[str, Coded]], limit: Limit, counts: Counter[str]) -> list[Coded]:
    """Return TEXTS within LIMIT; counts those that were longer under ``cut`` or ``split``.

    Args:
        texts: by their places in the file.
        limit: what they are held against.
        counts: is added to.

    Raises:
        MismatchError: longer ones, where they are refused.
    """
    found, problems = [], []
    for place, text in texts:
        if len(text.ids) <= limit.length:
            found.append(text)
        elif limit.too_long == "refuse":
            problems.append(f"{place}: {len(text.ids)} tokens")
        else:
            counts[limit.too_long] += 1
            found += (
                pieces(text, limit.length) if limit.too_long == "split" else [_cut(text, limit)]
            )
    refuse(problems, f"texts are longer than {limit.length} tokens (data.too_long is refuse)")
    return found


def pieces(text: Coded, length: int) -> Iterator[Coded]:
    """Yield TEXT in parts of LENGTH tokens; the last one may be shorter."""
    for first in range(0, len(text.ids), length):
        yield text.part(first, first + length)


def packed(texts: Sequence[Coded], length: int) -> list[Coded]:
    """Return TEXTS one behind the other, divided into blocks of LENGTH tokens."""
    joined = Coded(*(np.concatenate(column) for column in zip(*texts, strict=True)))
    return list(pieces(joined, length))


def learnable(texts: Iterable[Coded], counts: Counter[str]) -> list[Coded]:
    """Return those of TEXTS with a label that counts behind their first token; counts the others."""
    every = list(texts)
    kept = [text for text in every if learns(text)]
    if len(kept) < len(every):
        counts["nothing_to_learn"] += len(every) - len(kept)
    return kept


def learns(text: Coded) -> bool:
    """Say whether TEXT has a label that counts behind its first token."""
    return bool((text.labels[1:] != IGNORED).any())


def _cut(text: Coded, limit: Limit) -> Coded:
    if not limit.closed:
        return text.part(0, limit.length)
    begin, end = text.part(0, limit.length - 1), text.part(-1, len(text.ids))
    return Coded(*(np.concatenate(them) for them in zip(begin, end, strict=True)))
