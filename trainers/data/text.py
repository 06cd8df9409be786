"""Texts for language models: ids, labels and their masks, padded to a few lengths or packed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import xxhash

from ...errors import BadInputError
from .batches import Batch
from .rows.plain import is_plain, read_plain
from .rows.tables import part_of, read_table, refuse, taken
from .tokens.buckets import fitting, padded, real, require_fit, suited
from .tokens.coding import Coder, tokenizer_of
from .tokens.forms import IGNORED, Coded, Form, Way, coded, form_of, largest
from .tokens.hiding import Hiding
from .tokens.lengths import Limit, fitted, learnable, packed

if TYPE_CHECKING:
    from ..configuration.data import TextData
    from .context import Context

WANTED: Final = "rows with a text, a prompt and its completion, or messages"
FORMS: Final = (("text",), ("messages",), ("prompt", "completion"))  # columns that make a row
BLOCK: Final = 512  # tokens of a packed block where nothing says how many
Placed = list[tuple[str, Form]]


def read_split(section: TextData, path: Path, context: Context) -> Text:
    """Read a split and tokenise it.

    Raises:
        BadInputError: it cannot be read, or there is no tokenizer.
        MismatchError: rows that are no text; ids or positions that the model has no row for.
    """
    coder = Coder(tokenizer_of(context.tokenizer))
    forms = part_of(_read(section, path), context, path)
    counts = Counter(texts=len(forms), empty=sum(form.blank for _, form in forms))
    texts = _coded(section, [it for it in forms if not it[1].blank], coder, path)
    lengths = _lengths(section, [len(text.ids) for _, text in texts], context)
    examples = _examples(section, texts, lengths[-1], counts)
    if not examples:
        raise BadInputError(f"{path}: nothing to learn in it")
    require_fit({"data.length": lengths}, largest(examples), path, context)
    return Text(examples, lengths, dict(counts), _hiding(section, coder))


def _read(section: TextData, path: Path) -> Placed:
    """Return what is in PATH: its rows, or the texts of plain files."""
    if not is_plain(path):
        names = section.columns.model_dump()
        ways = [{name: names[name] for name in form} for form in FORMS]
        table = read_table(path, WANTED).having(*ways)
        return taken(table, partial(form_of, columns=section.columns), WANTED)
    if section.too_long == "cut" and not section.pack:
        raise BadInputError(
            f"{path}: a plain file is one text, of which no more than a begin would be left;"
            " --set data.pack=true, or data.too_long=split"
        )
    return [(place, Form(text)) for place, text in read_plain(path)]


def _coded(section: TextData, forms: Placed, coder: Coder, path: Path) -> list[tuple[str, Coded]]:
    if section.mask_prompt:
        bare = [f"{place}: a text alone, without a prompt" for place, it in forms if it.bare]
        refuse(bare, f"{path} has no prompts for data.mask_prompt")
    return coded(forms, coder, Way(section.chat_template, section.mask_prompt), path)


def _lengths(section: TextData, found: Sequence[int], context: Context) -> tuple[int, ...]:
    """Return the padded lengths; packed texts have one."""
    if not section.pack:
        return suited(section.length, found, context)
    return (max(section.length or [min(BLOCK, context.positions or BLOCK)]),)


def _examples(
    section: TextData, texts: list[tuple[str, Coded]], longest: int, counts: Counter[str]
) -> list[Coded]:
    if section.pack:
        found = packed([text for _, text in texts], longest) if texts else []
    else:
        limit = Limit(longest, section.too_long, closed=section.hide is not None)
        found = fitted(texts, limit, counts)
    kept = learnable(found, counts)
    counts["examples"] = len(kept)
    counts["tokens"] = sum(len(text.ids) for text in kept)
    return kept


def _hiding(section: TextData, coder: Coder) -> Hiding | None:
    if section.hide is None:
        return None
    if coder.mask is None:
        raise BadInputError("data.hide: the tokenizer has no token that hides others")
    return Hiding(section.hide, coder.mask, coder.size, coder.special, section.seed)


class Text:
    """Tokenised texts; see :class:`~weighbridge.trainers.data.batches.Dataset`.

    Args:
        texts: none longer than the last of LENGTHS.
        lengths: ascending padded lengths.
        report: what was found in the file.
        hiding: hides tokens; labels are then those that were hidden.
    """

    def __init__(
        self,
        texts: Sequence[Coded],
        lengths: Sequence[int],
        report: dict[str, int],
        hiding: Hiding | None = None,
    ) -> None:
        self.texts, self.report = texts, report
        self._lengths, self._hiding, self.hides = lengths, hiding, hiding is not None
        digest = xxhash.xxh3_128(repr(hiding and hiding._replace(special=frozenset())).encode())
        for text in texts:
            digest.update(f"{len(text.ids)} ".encode())
            digest.update(text.ids.tobytes() + text.labels.tobytes())
        self.digest = digest.hexdigest()

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.texts)

    def batch(self, rows: Sequence[int]) -> Batch:
        """Return ``ids``, ``mask`` and ``labels`` of ROWS, int64, shape ``(rows, length)``.

        The label at a position is the token at it, -100 where no loss counts.
        """
        columns = [self.texts[row] for row in rows]
        if self._hiding:
            columns = [
                Coded(*self._hiding.of(row, text.ids))
                for row, text in zip(rows, columns, strict=True)
            ]
        ids = padded([text.ids for text in columns], self._lengths)
        mask = real([text.ids for text in columns], ids.shape[1])
        labels = padded([text.labels for text in columns], self._lengths, IGNORED)
        return Batch({"ids": ids, "mask": mask, "labels": labels}, len(rows), int(np.sum(mask)))

    def length(self, row: int) -> int:
        """Return the number of tokens."""
        return len(self.texts[row].ids)

    def width(self, row: int) -> int:
        """Return the padded length."""
        return fitting(self._lengths, self.length(row))

    def keys(self, row: int) -> tuple[Hashable, ...]:  # noqa: ARG002 - all rows are alike
        """Return nothing: any two examples may meet."""
        return ()

    def marks(self, row: int) -> tuple[Hashable, ...]:
        """Return the tokens: an example of another split with the same ones is seen in training."""
        return (self.texts[row].ids.tobytes(),)
