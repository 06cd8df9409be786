"""Texts read by a program that keeps keys and values in states: row by row, in one call or in several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from ....errors import MismatchError
from ...values import Array
from .features import Feature

HIDDEN: Final = np.float32(
    -3e4
)  # is added to the scores of tokens that come later; float16 holds it
Arrays = Mapping[str, Array]
Call = Callable[[Arrays], Mapping[str, Array]]


class Text(NamedTuple):
    """The inputs of a program that goes on with a text.

    Attributes:
        ids: takes the new tokens of one text, of shape (1, tokens).
        position: takes how many tokens were read before, of shape (1,).
        single: the function that reads one token; empty where one function reads any number.
        mask: takes what is added to scores, of shape (1, 1, tokens, tokens read with them), in packages that
            have this in place of a position.
    """

    ids: str
    position: str
    single: str = ""
    mask: str = ""


def text_of(manifest: Mapping[str, Any]) -> Text | None:
    """Return what MANIFEST says of how its program reads a text; ``None`` where it keeps nothing.

    >>> text_of({"text": {"ids": "input_ids", "position": "position"}})
    Text(ids='input_ids', position='position', single='', mask='')
    """
    entry = manifest.get("text")
    given = {**Text._field_defaults, **entry} if isinstance(entry, Mapping) else {}
    names = [given.get(name) for name in Text._fields]
    return Text(*map(str, names)) if all(isinstance(name, str) for name in names) else None


def run_program(
    program: Any,
    text: Text | None,
    inputs: Arrays,
    how: Callable[[], dict[str, Any]],
    sizes: Sequence[int] = (),
) -> dict[str, Array]:
    """Return what PROGRAM, a ``Program``, makes of INPUTS, ``read_rows`` where it goes on with a TEXT.

    HOW returns options of ``Program.run``, asked once for every row.
    """
    if text is None:
        return dict(program.run(inputs, **how()))
    return read_rows(
        text, inputs, lambda: partial(program.run, state=program.new_state(), **how()), sizes
    )


def each_row(text: Text, inputs: Arrays, corrections: Arrays) -> Iterator[tuple[Arrays, Arrays]]:
    """Yield the inputs of one call for every row of INPUTS, and what of CORRECTIONS is the row's."""
    ids = rows_of(text, inputs)
    for index, row in enumerate(ids):
        own = {n: it[index, None] if len(it) == len(ids) else it for n, it in corrections.items()}
        yield from ((part, own) for part in parts(text, inputs, row, [len(row)]))


def read_rows(
    text: Text, inputs: Arrays, begin: Callable[[], Call], sizes: Sequence[int] = ()
) -> dict[str, Array]:
    """Return the outputs for every row of INPUTS, all tokens of a row one behind the other.

    Args:
        text: the program's inputs.
        inputs: ids of shape (rows, tokens), by name.
        begin: returns a call of the program with states of its own.
        sizes: how many tokens each call reads; all at once by default.

    Raises:
        MismatchError: there are no such ids.
    """
    return stacked([read_row(text, inputs, row, (begin(), sizes)) for row in rows_of(text, inputs)])


def stacked(rows: Sequence[Arrays]) -> dict[str, Array]:
    """Return the arrays of ROWS, one below the other."""
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


def rows_of(text: Text, inputs: Arrays) -> Array:
    """Return the ids in INPUTS, of shape (rows, tokens).

    Raises:
        MismatchError: there are none of that shape.
    """
    given = inputs.get(text.ids)
    if given is None or np.ndim(given) != 2 or not np.size(given):
        found = "missing" if given is None else f"of shape {list(np.shape(given))}"
        raise MismatchError(
            "inputs do not fit", [f"{text.ids} is {found}, expected [rows, tokens]"]
        )
    return np.asarray(given)


def read_row(
    text: Text, inputs: Arrays, ids: Array, how: tuple[Call, Sequence[int]]
) -> dict[str, Array]:
    """Return the outputs for the tokens IDS of one text, read by a call in pieces as HOW says."""
    call, sizes = how
    calls = [call(part) for part in parts(text, inputs, ids, sizes or [len(ids)])]
    return {name: np.concatenate([it[name] for it in calls], axis=1) for name in calls[0]}


def parts(text: Text, inputs: Arrays, ids: Array, sizes: Sequence[int]) -> Iterator[Arrays]:
    """Yield what each call is given: SIZES say how many tokens of IDS.

    >>> text = Text("ids", "at")
    >>> [(it["ids"].tolist(), it["at"].tolist()) for it in parts(text, {}, np.arange(3), (2, 1))]
    [([[0, 1]], [0]), ([[2]], [2])]
    """
    for start, stop in pairwise(accumulate(sizes, initial=0)):
        part = {**inputs, text.ids: ids[None, start:stop]}
        if text.position:
            part[text.position] = np.array([start], np.int32)
        if text.mask:
            part[text.mask] = np.triu(np.full((1, 1, stop - start, stop), HIDDEN), start + 1)
        yield part


def text_among(features: Mapping[str, Feature]) -> Text | None:
    """Return how a function of states, with inputs of these FEATURES, reads a text; ``None`` where that is not clear.

    >>> text_among({"x": Feature("int32", (1, "1..9")), "at": Feature("int32", (1,))})
    Text(ids='x', position='at', single='', mask='')
    """
    kinds = {name: (it.dtype[:3], len(it.shape)) for name, it in features.items()}
    found = {
        part: [name for name, kind in kinds.items() if kind == wanted]
        for part, wanted in {"ids": ("int", 2), "position": ("int", 1), "mask": ("flo", 4)}.items()
    }
    ids, position, mask = found.values()
    if len(ids) != 1 or len(position) + len(mask) != 1 or len(kinds) != 2:
        return None
    return Text(ids[0], "".join(position), mask="".join(mask))
