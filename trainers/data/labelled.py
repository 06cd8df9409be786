"""Texts with their labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import xxhash

from ...converters.values import Array
from ...errors import BadInputError
from .batches import Batch
from .rows.tables import Refused, Row, lacking, part_of, read_table, refuse, taken
from .text import Text
from .tokens.buckets import require_fit, suited
from .tokens.classes import Classes, Labels, label_of, odd
from .tokens.coding import Coder, tokenizer_of
from .tokens.forms import Coded, labelled, largest
from .tokens.lengths import Limit, fitted

if TYPE_CHECKING:
    from ..configuration.data import LabelledColumns, LabelledData
    from .context import Context

WANTED: Final = "rows with a text and a label"


class Example(NamedTuple):
    """A text and its label, or its labels."""

    text: str
    label: Labels


def read_split(section: LabelledData, path: Path, context: Context) -> Labelled:
    """Read a split and tokenise it; labels are those of the training split.

    Raises:
        BadInputError: it cannot be read, or there is no tokenizer.
        MismatchError: rows without text or label, labels that training does not have, ids or positions
            that the model has no row for.
    """
    coder = Coder(tokenizer_of(context.tokenizer))
    table = read_table(path, WANTED, [section.columns.label]).having(section.columns.model_dump())
    rows = taken(table, partial(_example, columns=section.columns), WANTED)
    rows = list(part_of(rows, context, path))
    kept = [(place, it) for place, it in rows if it.text.strip()]
    if not kept:
        raise BadInputError(f"{path}: no text in it")
    labels = [it.label for _, it in kept]
    classes = context.train.classes if context.train else Classes.found(labels, section.classes)
    rare = odd([(place, it.label) for place, it in kept]) if not context.train else []
    refuse(rare, f"{path} has labels that are names and labels that are numbers")
    wrong = [(place, classes.wrong(it.label)) for place, it in kept]
    refuse(
        [f"{place}: {problem}" for place, problem in wrong if problem],
        f"{path} has labels that are unknown",
    )
    counts = Counter(examples=len(kept), empty=len(rows) - len(kept), classes=len(classes.names))
    ids = coder.encode([it.text for _, it in kept])
    lengths = suited(section.length, [len(it) for it in ids], context)
    placed = [(place, labelled(it)) for (place, _), it in zip(kept, ids, strict=True)]
    texts = fitted(placed, Limit(lengths[-1], section.too_long, closed=True), counts)
    require_fit({"data.length": lengths}, largest(texts), path, context)
    return Labelled(texts, lengths, dict(counts), classes.encoded(labels), classes)


def _example(row: Row, columns: LabelledColumns) -> Example | Refused:
    text, label = row.get(columns.text), label_of(row, columns.label)
    if not isinstance(text, str):
        return lacking(row, [columns.text])
    return label if isinstance(label, Refused) else Example(text, label)


class Labelled(Text):
    """Tokenised texts with labels; see :class:`~weighbridge.trainers.data.batches.Dataset`.

    Args:
        texts: none longer than the last of LENGTHS.
        lengths: ascending padded lengths.
        report: what was found in the file.
        labels: of the texts, as :class:`Classes` tells them.
        classes: what the labels are.
    """

    def __init__(
        self,
        texts: Sequence[Coded],
        lengths: Sequence[int],
        report: dict[str, int],
        labels: Array,
        classes: Classes,
    ) -> None:
        super().__init__(texts, lengths, report)
        self.labels, self.classes = labels, classes
        own = f"{self.digest}{classes}".encode() + labels.tobytes()
        self.digest = xxhash.xxh3_128_hexdigest(own)

    def batch(self, rows: Sequence[int]) -> Batch:
        """Return ``ids`` and ``mask``, int64, shape ``(rows, length)``, and ``labels``.

        Labels are int64, shape ``(rows,)``, or where texts may have several 0 or 1 in float32, shape
        ``(rows, classes)``.
        """
        batch = super().batch(rows)
        return Batch(batch | {"labels": self.labels[list(rows)]}, batch.rows, batch.tokens)
