"""Pairs of texts: read, checked, tokenised once, padded to a few fixed lengths."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import xxhash

from ...converters.common.contents import JSON, TEXT, require
from ...converters.documents import LINE, parse_object
from ...converters.values import Array
from ...errors import BadInputError, MismatchError
from ...parity.text.tokenizers import TRIAL, has_tokenizer, reading, stderr_closed
from .batches import Batch

if TYPE_CHECKING:
    from ..configuration.data import PairsData
    from .context import Context

PLAIN: Final = frozenset({"JSON lines", JSON, TEXT, "empty"})  # what is read as JSON lines
FIELDS: Final = ("query", "document")
SHOWN: Final = 20  # bad lines named in one error
Tokenize = Callable[[Sequence[str]], list[list[int]]]


class Texts(NamedTuple):
    """Pairs as read, and what was found in the file."""

    pairs: list[tuple[str, str]]
    report: dict[str, int]


def read_pairs(path: Path) -> Texts:
    """Read JSON lines with the texts ``query`` and ``document``; drop empty and repeated pairs.

    Returns:
        The pairs and the counts ``pairs``, ``empty`` (dropped), ``duplicates`` (dropped) and
        ``shared_texts`` (pairs kept that share a text with an earlier one).

    Raises:
        BadInputError: the file cannot be read, or nothing is left.
        MismatchError: lines that are not such objects, with their numbers.
    """
    require(path, "JSON lines with the texts query and document", PLAIN)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"{path}: cannot read the pairs: {error}") from None
    rows = [(number, _parse(line)) for number, line in enumerate(lines, 1) if line.strip()]
    problems = [f"line {number}: {row}" for number, row in rows if isinstance(row, str)]
    if problems:
        more = [f"and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
        summary = f"{path} is not JSON lines with the texts query and document"
        raise MismatchError(summary, problems[:SHOWN] + more)
    texts = _select(row for _, row in rows if not isinstance(row, str))
    if not texts.pairs:
        raise BadInputError(f"{path}: no pair with two texts in it")
    return texts


def read_split(section: PairsData, path: Path, context: Context) -> Pairs:
    """Read a split and tokenise it.

    Raises:
        BadInputError: it cannot be read, or there is no tokenizer.
        MismatchError: lines that are no pairs; ids or positions that the model has no row for.
    """
    if context.tokenizer is None:
        raise BadInputError(
            "texts need a tokenizer, and the model has no directory to hold one; --set tokenizer=DIR"
        )
    lengths: dict[str, Sequence[int]] = {
        name: sorted(buckets) for name, buckets in section.lengths.model_dump().items()
    }
    pairs = Pairs(read_pairs(path), load_tokenizer(context.tokenizer), lengths)
    if problems := [*_too_long(lengths, context), *_unknown(pairs, path, context)]:
        raise MismatchError("the model does not fit the texts of the run", problems)
    return pairs


def _too_long(lengths: Mapping[str, Sequence[int]], context: Context) -> Iterator[str]:
    for name, length in ((name, it) for name, them in lengths.items() for it in them):
        if context.positions and length > context.positions:
            yield f"data.lengths.{name}: {length} tokens, and the model has {context.positions} positions"


def _unknown(pairs: Pairs, path: Path, context: Context) -> Iterator[str]:
    largest = max(max(ids, default=0) for field in pairs.ids.values() for ids in field)
    if context.vocabulary and largest >= context.vocabulary:
        yield f"{path}: token id {largest}, and the model has 0 to {context.vocabulary - 1}"


class Pairs:
    """Tokenised pairs; see :class:`~weighbridge.trainers.data.batches.Dataset`.

    Args:
        texts: what :func:`read_pairs` returned.
        tokenize: texts to ids, special tokens included, uncut.
        lengths: ascending padded lengths by field; longer texts lose their end, not their last
            token, which is a special one.
    """

    def __init__(self, texts: Texts, tokenize: Tokenize, lengths: dict[str, Sequence[int]]) -> None:
        self.pairs, self._lengths = texts.pairs, lengths
        columns = {
            name: list(column)
            for name, column in zip(FIELDS, zip(*texts.pairs, strict=True), strict=True)
        }
        uncut = {name: tokenize(columns[name]) for name in FIELDS}
        self.ids = {name: [_cut(ids, lengths[name][-1]) for ids in uncut[name]] for name in FIELDS}
        self.report = texts.report | {
            f"cut_{name}": sum(len(ids) > lengths[name][-1] for ids in uncut[name])
            for name in FIELDS
        }
        self.digest = xxhash.xxh3_128_hexdigest(json.dumps([texts.pairs, self.ids]).encode())

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.pairs)

    def batch(self, rows: Sequence[int]) -> Batch:
        """Return ids and masks of both texts, int64, each padded to the smallest length that fits."""
        inputs: dict[str, Array] = {}
        for name in FIELDS:
            inputs[f"{name}_ids"], inputs[f"{name}_mask"] = self.padded(name, rows)
        tokens = sum(int(inputs[f"{name}_mask"].sum()) for name in FIELDS)
        return Batch(inputs, len(rows), tokens)

    def padded(self, name: str, rows: Sequence[int]) -> tuple[Array, Array]:
        """Return ids and mask of text NAME of ROWS, shape ``(rows, length)``."""
        texts = [self.ids[name][row] for row in rows]
        longest = max(len(ids) for ids in texts)
        length = next(length for length in self._lengths[name] if length >= longest)
        ids = np.zeros((len(rows), length), np.int64)
        mask = np.zeros_like(ids)
        for row, text in enumerate(texts):
            ids[row, : len(text)] = text
            mask[row, : len(text)] = 1
        return ids, mask

    def length(self, row: int) -> int:
        """Return the number of tokens of both texts, after cutting."""
        return sum(len(self.ids[name][row]) for name in FIELDS)

    def keys(self, row: int) -> tuple[Hashable, ...]:
        """Return both texts: a repeated one would be a wrong negative."""
        query, document = self.pairs[row]
        return ("query", query), ("document", document)


def load_tokenizer(folder: Path) -> Tokenize:
    """Return the tokenizer in FOLDER as a function, without cutting and padding.

    Raises:
        BadInputError: the folder holds none.
    """
    if not has_tokenizer(folder):
        raise BadInputError(f"{folder}: no tokenizer there")
    file = folder / "tokenizer.json"
    if file.is_file():
        from tokenizers import Tokenizer

        with reading(file), stderr_closed():
            fast = Tokenizer.from_file(str(file))
            fast.encode(TRIAL)
        fast.no_padding()
        fast.no_truncation()
        return partial(_encoded, fast, file)
    with reading(folder), stderr_closed():
        from transformers import AutoTokenizer

        slow = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return lambda texts: slow(list(texts), truncation=False)["input_ids"]


def _encoded(fast: Any, file: Path, texts: Sequence[str]) -> list[list[int]]:
    with reading(file):
        return [encoding.ids for encoding in fast.encode_batch(list(texts))]


def _parse(line: str) -> tuple[str, str] | str:
    """Return the two texts of LINE, or what is wrong with it."""
    try:
        content = parse_object(line, "", LINE)
    except BadInputError as error:
        return str(error).removeprefix(": ").removesuffix(f"; {LINE.todo}")
    wrong = [name for name in FIELDS if not isinstance(content.get(name), str)]
    return f"no text {' and '.join(wrong)}" if wrong else (content["query"], content["document"])


def _select(rows: Iterable[tuple[str, str]]) -> Texts:
    counts = Counter(pairs=0, empty=0, duplicates=0, shared_texts=0)
    pairs: dict[tuple[str, str], None] = {}
    seen: set[Hashable] = set()
    for pair in rows:
        if not all(text.strip() for text in pair):
            counts["empty"] += 1
        elif pair in pairs:
            counts["duplicates"] += 1
        else:
            keys = set(enumerate(pair))
            counts["shared_texts"] += not seen.isdisjoint(keys)
            seen |= keys
            pairs[pair] = None
    counts["pairs"] = len(pairs)
    return Texts(list(pairs), dict(counts))


def _cut(ids: list[int], length: int) -> list[int]:
    return ids if len(ids) <= length else [*ids[: length - 1], ids[-1]]
