"""Prompts with an answer that is preferred and one that is not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import xxhash

from ...converters.values import Array
from ...errors import BadInputError
from .batches import Batch
from .rows.tables import SHOWN, Refused, Row, lacking, part_of, read_table, taken
from .tokens.buckets import fitting, padded, real, require_fit, suited
from .tokens.coding import Coder, tokenizer_of
from .tokens.forms import IGNORED, Coded, Form, Way, coded, conversation, largest
from .tokens.lengths import Limit, fitted, learns

if TYPE_CHECKING:
    from ..configuration.data import PreferencesColumns, PreferencesData
    from .context import Context

WANTED: Final = "rows with a prompt and the answers chosen and rejected"
SIDES: Final = ("chosen", "rejected")


def read_split(section: PreferencesData, path: Path, context: Context) -> Preferences:
    """Read a split and tokenise it.

    Raises:
        BadInputError: it cannot be read, or there is no tokenizer.
        MismatchError: rows that are none; ids or positions that the model has no row for.
    """
    coder = Coder(tokenizer_of(context.tokenizer))
    table = read_table(path, WANTED).having(section.columns.model_dump())
    rows = taken(table, partial(_forms_of, columns=section.columns), WANTED)
    rows = list(part_of(rows, context, path))
    kept = [(place, it) for place, it in rows if not any(form.blank for form in it.values())]
    way = Way(section.chat_template, mask_prompt=True)
    both = [coded([(place, it[side]) for place, it in kept], coder, way, path) for side in SIDES]
    lengths = suited(section.length, [len(it.ids) for them in both for _, it in them], context)
    counts = Counter(empty=len(rows) - len(kept))
    limit = Limit(lengths[-1], section.too_long)
    answers = list(zip(*(fitted(them, limit, counts) for them in both), strict=True))
    learned = {
        place: it for (place, _), it in zip(kept, answers, strict=True) if all(map(learns, it))
    }
    same = [place for place, it in learned.items() if _alike(*it)]
    left = [it for it in learned.values() if not _alike(*it)]
    counts.update(examples=len(left), nothing_to_learn=len(answers) - len(learned))
    counts.update(same_answers=len(same))
    if not left:
        raise BadInputError(f"{path}: {_unlearnable(len(same), limit, cut=bool(counts['cut']))}")
    require_fit({"data.length": lengths}, max(map(largest, left)), path, context)
    return Preferences(left, lengths, dict(counts), _left_out(same))


def _alike(chosen: Coded, rejected: Coded) -> bool:
    """Say whether nothing tells both answers apart: their gradients cancel, and neither is ever preferred."""
    return all(map(np.array_equal, chosen, rejected))


def _left_out(same: Sequence[str]) -> tuple[str, ...]:
    if not same:
        return ()
    more = f" and {len(same) - SHOWN} more" if len(same) > SHOWN else ""
    return (f"{', '.join(same[:SHOWN])}{more}: chosen and rejected are the same; left out",)


def _unlearnable(same: int, limit: Limit, *, cut: bool) -> str:
    if not same:
        return "nothing to learn in it"
    within = f", within {limit.length} tokens; --set data.length to more" if cut else ""
    return f"chosen and rejected are the same in all {same} rows{within}"


def _forms_of(row: Row, columns: PreferencesColumns) -> dict[str, Form] | Refused:
    """Return both answers of ROW, each with the prompt before it."""
    prompt = row.get(columns.prompt)
    found = {side: _answered(prompt, row.get(getattr(columns, side))) for side in SIDES}
    wrong = [getattr(columns, side) for side, form in found.items() if form is None]
    if not isinstance(prompt, str | list):
        wrong = [columns.prompt, *(name for name in wrong if row.get(name) is None)]
    if wrong:
        return lacking(row, wrong)
    refused = next((it for it in found.values() if isinstance(it, Refused)), None)
    return refused or {side: form for side, form in found.items() if isinstance(form, Form)}


def _answered(prompt: Any, answer: Any) -> Form | Refused | None:
    """Return ANSWER to PROMPT, both texts or both messages; ``None`` if they are something else."""
    if isinstance(prompt, str) and isinstance(answer, str):
        return Form(answer, prompt)
    if isinstance(prompt, list) and isinstance(answer, list | str):
        last = answer if isinstance(answer, list) else [{"role": "assistant", "content": answer}]
        return conversation([*prompt, *last], None)
    return None


class Preferences:
    """Tokenised answers, two to a prompt; see :class:`~weighbridge.trainers.data.batches.Dataset`.

    Args:
        answers: the chosen and the rejected one, each behind its prompt.
        lengths: ascending padded lengths.
        report: what was found in the file.
        notes: which rows were left out, and why.
    """

    def __init__(
        self,
        answers: Sequence[tuple[Coded, ...]],
        lengths: Sequence[int],
        report: dict[str, int],
        notes: tuple[str, ...] = (),
    ) -> None:
        self.answers, self.report, self.notes, self._lengths = answers, report, notes, lengths
        digest = xxhash.xxh3_128()
        for text in (it for both in answers for it in both):
            digest.update(f"{len(text.ids)} ".encode() + text.ids.tobytes() + text.labels.tobytes())
        self.digest = digest.hexdigest()

    def __len__(self) -> int:
        """Return the number of prompts."""
        return len(self.answers)

    def batch(self, rows: Sequence[int]) -> Batch:
        """Return ``ids``, ``mask`` and ``labels`` of both answers, ``chosen_ids`` and so on.

        They are int64 of one shape, ``(rows, length)``; labels are -100 in the prompt.
        """
        lengths = [max(self.width(row)[0] for row in rows)]
        inputs: dict[str, Array] = {}
        for number, side in enumerate(SIDES):
            texts = [self.answers[row][number] for row in rows]
            inputs[f"{side}_ids"] = padded([it.ids for it in texts], lengths)
            inputs[f"{side}_mask"] = real([it.ids for it in texts], lengths[0])
            inputs[f"{side}_labels"] = padded([it.labels for it in texts], lengths, IGNORED)
        tokens = sum(int(np.sum(inputs[f"{side}_mask"])) for side in SIDES)
        return Batch(inputs, len(rows), tokens)

    def length(self, row: int) -> int:
        """Return the number of tokens of the longer answer with its prompt."""
        return max(len(text.ids) for text in self.answers[row])

    def width(self, row: int) -> tuple[int, int]:
        """Return the padded lengths of both answers, which are one."""
        length = fitting(self._lengths, self.length(row))
        return length, length

    def keys(self, row: int) -> tuple[Hashable, ...]:  # noqa: ARG002 - all rows are alike
        """Return nothing: any two examples may meet."""
        return ()

    def marks(self, row: int) -> tuple[Hashable, ...]:
        """Return the tokens of both answers with their prompt."""
        return tuple(text.ids.tobytes() for text in self.answers[row])
