"""Pairs of texts: read, checked, tokenised once, padded to a few fixed lengths."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import xxhash

from ...converters.values import Array
from ...errors import BadInputError
from .batches import Batch
from .context import Context
from .rows.tables import Refused, Row, lacking, number_of, part_of, read_table, refuse, taken
from .tokens.buckets import fitting, padded, real, require_fit, suited
from .tokens.coding import Coder, load_tokenizer, tokenizer_of

if TYPE_CHECKING:
    from ..configuration.data import PairsData

WANTED: Final = "JSON lines with the texts query and document"
FIELDS: Final = ("query", "document")
NEGATIVE: Final = "negative"  # the field of texts that do not belong to a query
Tokenize = Callable[[Sequence[str]], list[list[int]]]


class Pair(NamedTuple):
    """Two texts that belong together, texts that do not belong to the first, and how well the two do."""

    query: str
    document: str
    negatives: tuple[str, ...] = ()
    score: float | None = None

    @property
    def blank(self) -> bool:
        """Whether one of the texts is empty."""
        return not all(text.strip() for text in (self.query, self.document, *self.negatives))


class Texts(NamedTuple):
    """Pairs as read, and what was found in the file."""

    pairs: list[Pair]
    report: dict[str, int]


def read_pairs(
    path: Path, columns: Mapping[str, str] | None = None, context: Context | None = None
) -> Texts:
    """Read rows with the texts ``query`` and ``document``; drop empty and repeated pairs.

    Args:
        path: the file.
        columns: what ``query``, ``document``, ``negative`` and ``score`` are called in it.
        context: which of its rows are meant.

    Returns:
        The pairs and the counts ``pairs``, ``empty`` (dropped), ``duplicates`` (dropped) and
        ``shared_texts`` (pairs kept that share a text with an earlier one).

    Raises:
        BadInputError: the file cannot be read, or nothing is left.
        MismatchError: rows that are no such pairs, with their places.
    """
    names = {name: name for name in (*FIELDS, NEGATIVE, "score")} | dict(columns or {})
    table = read_table(path, WANTED, [names["score"]]).having({it: names[it] for it in FIELDS})
    placed = taken(table, partial(_pair_of, names=names), WANTED)
    refuse(list(_uneven(placed)), f"{path}: all rows have to be alike")
    chosen = part_of([pair for _, pair in placed], context or Context(), path) if placed else []
    texts = _select(chosen)
    if not texts.pairs:
        raise BadInputError(f"{path}: no pair with two texts in it")
    return texts


def read_split(section: PairsData, path: Path, context: Context) -> Pairs:
    """Read a split and tokenise it.

    Raises:
        BadInputError: it cannot be read, or there is no tokenizer.
        MismatchError: rows that are no pairs; texts that are too long; ids or positions that the model
            has no row for.
    """
    folder = tokenizer_of(context.tokenizer)
    tokenize = load_tokenizer(folder)
    write = Coder(folder).encode_written if context.writes else tokenize
    texts = read_pairs(path, section.columns.model_dump(), context)
    pairs = Pairs(texts, tokenize, section.lengths.model_dump(), context, write)
    largest = max(max(ids, default=0) for field in pairs.ids.values() for ids in field)
    lengths = {f"data.lengths.{name}": buckets for name, buckets in pairs.lengths.items()}
    require_fit(lengths, largest, path, context)
    cut = {name: count for name, count in pairs.report.items() if name.startswith("cut_")}
    if section.too_long == "refuse":
        problems = [
            f"{count} texts: {name.removeprefix('cut_')}" for name, count in cut.items() if count
        ]
        refuse(problems, f"{path} has texts longer than data.lengths (data.too_long is refuse)")
    return pairs


class Pairs:
    """Tokenised pairs; see :class:`~weighbridge.trainers.data.batches.Dataset`.

    Args:
        texts: what :func:`read_pairs` returned.
        tokenize: texts to ids, special tokens included, uncut.
        lengths: padded lengths by field, ``None`` chooses them; longer texts lose their end, not their
            last token, which is a special one. Negatives have those of documents.
        context: how many positions there are.
        write: the same of documents, where they are coded otherwise than queries.

    Attributes:
        ids: token ids by field, those of negatives row by row.
        lengths: ascending padded lengths by field.
    """

    def __init__(
        self,
        texts: Texts,
        tokenize: Tokenize,
        lengths: Mapping[str, Sequence[int] | None],
        context: Context | None = None,
        write: Tokenize | None = None,
    ) -> None:
        self.pairs = [Pair(*pair) for pair in texts.pairs]
        uncut = _coded(self.pairs, tokenize, write or tokenize)
        self.lengths = {
            name: suited(lengths[name], list(map(len, field)), context or Context())
            for name, field in uncut.items()
            if name in FIELDS
        }
        longest = {name: self.lengths[_field(name)][-1] for name in uncut}
        self.ids = {name: [_cut(ids, longest[name]) for ids in uncut[name]] for name in uncut}
        cut = {
            f"cut_{name}": sum(len(ids) > longest[name] for ids in field)
            for name, field in uncut.items()
        }
        self.report = texts.report | cut
        self._fields = sorted(FIELDS, key=lambda name: -sum(map(len, self.ids[name])))
        # Runs whose lengths are named keep the order that they always had.
        self.by_width = None in lengths.values()
        plain = [pair if pair[2:] != Pair("", "")[2:] else pair[:2] for pair in self.pairs]
        self.digest = xxhash.xxh3_128_hexdigest(json.dumps([plain, self.ids]).encode())

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.pairs)

    def batch(self, rows: Sequence[int]) -> Batch:
        """Return ids and masks of all texts, int64, each padded to the smallest length that fits.

        They have the shape ``(rows, length)``, those of negatives ``(rows, negatives, length)``; scores,
        where there are any, are float32.
        """
        inputs: dict[str, Array] = {}
        for name in self.ids:
            ids, mask = self.padded(name, rows)
            shape = (len(rows), -1, ids.shape[1]) if name == NEGATIVE else ids.shape
            inputs[f"{name}_ids"], inputs[f"{name}_mask"] = ids.reshape(shape), mask.reshape(shape)
        tokens = sum(int(inputs[f"{name}_mask"].sum()) for name in self.ids)
        if self.pairs[0].score is not None:
            inputs["score"] = np.array([self.pairs[row].score for row in rows], np.float32)
        return Batch(inputs, len(rows), tokens)

    def padded(self, name: str, rows: Sequence[int]) -> tuple[Array, Array]:
        """Return ids and mask of text NAME of ROWS, shape ``(rows, length)``; of negatives all of each row."""
        each = len(self.ids[name]) // len(self)
        texts = [self.ids[name][row * each + number] for row in rows for number in range(each)]
        ids = padded(texts, self.lengths[_field(name)])
        return ids, real(texts, ids.shape[1])

    def length(self, row: int) -> int:
        """Return the number of tokens of both texts, after cutting."""
        return sum(len(self.ids[name][row]) for name in FIELDS)

    def width(self, row: int) -> tuple[int, ...]:
        """Return the padded lengths of both texts, that of the field with more tokens first, and of negatives."""
        both = (fitting(self.lengths[name], len(self.ids[name][row])) for name in self._fields)
        count = len(self.pairs[row].negatives)
        others = self.ids[NEGATIVE][row * count : (row + 1) * count] if count else []
        longest = fitting(self.lengths["document"], max(map(len, others), default=0))
        return *both, *(longest for _ in others)

    def keys(self, row: int) -> tuple[Hashable, ...]:
        """Return both texts: a repeated one would be a wrong negative."""
        query, document = self.pairs[row][:2]
        return ("query", query), ("document", document)


def _coded(pairs: Sequence[Pair], read: Tokenize, write: Tokenize) -> dict[str, list[list[int]]]:
    """Return the ids of every field that PAIRS have."""
    queries, documents = ([getattr(pair, name) for pair in pairs] for name in FIELDS)
    negatives = [text for pair in pairs for text in pair.negatives]
    coded = {"query": read(queries), "document": write(documents)}
    return coded | ({NEGATIVE: write(negatives)} if negatives else {})


def _field(name: str) -> str:
    """Return the field whose lengths the field NAME has."""
    return "document" if name == NEGATIVE else name


def _pair_of(row: Row, names: Mapping[str, str]) -> Pair | Refused:
    """Return the texts of ROW, or what is wrong with it."""
    query, document = (row.get(names[name]) for name in FIELDS)
    if not isinstance(query, str) or not isinstance(document, str):
        found = {names["query"]: query, names["document"]: document}
        return lacking(row, [name for name, text in found.items() if not isinstance(text, str)])
    negatives = row.get(names[NEGATIVE])
    listed = [negatives] if isinstance(negatives, str) else negatives or []
    if not isinstance(listed, list | tuple) or not all(isinstance(it, str) for it in listed):
        return Refused(f"{names[NEGATIVE]} is no text, nor a list of texts")
    score = number_of(row, names["score"])
    return score if isinstance(score, Refused) else Pair(query, document, tuple(listed), score)


def _uneven(pairs: Sequence[tuple[str, Pair]]) -> Iterator[str]:
    """Yield the places of pairs that have not as many negatives and scores as the first one."""
    first = pairs[0][1] if pairs else Pair("", "")
    for place, pair in pairs:
        if len(pair.negatives) != len(first.negatives):
            yield f"{place}: {len(pair.negatives)} negatives, and the first row has {len(first.negatives)}"
        if (pair.score is None) != (first.score is None):
            yield f"{place}: {'no' if pair.score is None else 'a'} score, unlike the first row"


def _select(rows: Iterable[Pair]) -> Texts:
    counts = Counter(pairs=0, empty=0, duplicates=0, shared_texts=0)
    pairs: dict[Pair, None] = {}
    seen: set[Hashable] = set()
    for pair in rows:
        if pair.blank:
            counts["empty"] += 1
        elif pair in pairs:
            counts["duplicates"] += 1
        else:
            keys = set(enumerate(pair[:2]))
            counts["shared_texts"] += not seen.isdisjoint(keys)
            seen |= keys
            pairs[pair] = None
    counts["pairs"] = len(pairs)
    return Texts(list(pairs), dict(counts))


def _cut(ids: list[int], length: int) -> list[int]:
    return ids if len(ids) <= length else [*ids[: length - 1], ids[-1]]
