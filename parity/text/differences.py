"""Where two readings of a text side part, told at the first character."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final

from .chats import LATEST, PLAIN, SET
from .phrases import BLOCK as CHARACTERS
from .phrases import TEXTS, character_blocks, token_text
from .reading import BLOCK, SHORT, Reading
from .side import TextSide

AROUND: Final = 12  # characters quoted on either side of the first that differs
QUOTED: Final = 6  # ids quoted from the first that differs

Compare = Callable[[Reading, Reading], Iterator[str]]


def first_difference(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return the index at which ONE and OTHER part.

    >>> first_difference("model", "models"), first_difference([1, 2], [1, 3])
    (5, 1)
    """
    pairs = enumerate(zip_longest(one, other))
    return next((index for index, (left, right) in pairs if left != right), len(one))


def text_difference(wanted: str, found: str) -> str:
    """Say where two texts part, and what each says there.

    >>> text_difference("<s>user", "<s> user")
    "at character 3: expected '<s>user', found '<s> user'"
    """
    place = first_difference(wanted, found)
    span = slice(max(0, place - AROUND), place + AROUND)
    return f"at character {place}: expected {wanted[span]!r}, found {found[span]!r}"


def ids_difference(wanted: Sequence[int], found: Sequence[int], text: str, start: int) -> str:
    """Say where the ids of TEXT part: WANTED and FOUND, at its character START."""
    place = first_difference(wanted, found)
    ids = f"expected {list(wanted[place:][:QUOTED])}, found {list(found[place:][:QUOTED])}"
    where = f" at character {start}" if start >= 0 else f" at token {place}"
    begin = max(0, start - AROUND)
    return f"{text[begin : begin + 3 * AROUND]!r}{where}: {ids}"


def _ids(reference: Reading, candidate: Reading) -> Iterator[str]:
    rows = list(zip(TEXTS, reference.ids, candidate.ids, strict=True))
    different = [index for index, (_, wanted, found) in enumerate(rows) if wanted != found]
    if different:
        text, wanted, found = rows[different[0]]
        start = _start(candidate.starts, different[0], first_difference(wanted, found), text)
        count = f"{len(different)} of {len(TEXTS)} texts give other ids"
        yield f"{count}; first {ids_difference(wanted, found, text, start)}"


def _start(starts: Sequence[Sequence[int]], row: int, place: int, text: str) -> int:
    """Return where in TEXT the id at PLACE of ROW begins; -1 where nobody knows."""
    if not starts:
        return -1
    return starts[row][place] if place < len(starts[row]) else len(text)


def _tokens(reference: Reading, candidate: Reading) -> Iterator[str]:
    for token, wanted in reference.tokens.items():
        found = candidate.tokens.get(token)
        if found is not None and found != wanted:
            where = ids_difference(wanted, found, token_text(token), -1)
            yield f"the token {token!r} inside text gives other ids: {where}"


def _skipped(reference: Reading, candidate: Reading) -> Iterator[str]:
    for token, wanted in reference.skipped.items():
        found = candidate.skipped.get(token)
        if found is not None and found != wanted:
            where = text_difference(wanted, found)
            yield f"text around {token!r}, decoded without special tokens, differs {where}"


def _decoded(reference: Reading, candidate: Reading) -> Iterator[str]:
    for index, words in enumerate(("", " without special tokens")):
        pairs = [
            (wanted[index], found[index])
            for wanted, found in zip(reference.decoded, candidate.decoded, strict=True)
            if wanted[index] != found[index]
        ]
        if pairs:
            count = f"{len(pairs)} of {len(TEXTS)} texts are decoded{words} to others"
            yield f"{count}; first {text_difference(*pairs[0])}"


def _characters(reference: Reading, candidate: Reading) -> Iterator[str]:
    blocks = [first for first, _ in character_blocks()]
    rows = zip(blocks, reference.characters, candidate.characters, strict=True)
    different = [first for first, wanted, found in rows if wanted != found]
    if different:
        span = f"U+{different[0]:04X} to U+{different[0] + CHARACTERS - 1:04X}"
        yield (
            f"characters one by one give other ids, first some of {span}"
            f" ({len(different)} of {len(blocks)} such blocks)"
        )


def _entries(reference: Reading, candidate: Reading) -> Iterator[str]:
    for name in sorted(reference.entries.keys() & candidate.entries.keys()):
        wanted, found = reference.entries[name], candidate.entries[name]
        if wanted != found:
            first = first_difference(wanted, found) * BLOCK
            yield f"the {name} of the tokenizer differ from entries {first} to {first + BLOCK - 1} on"


def _spelled(reference: Reading, candidate: Reading) -> Iterator[str]:
    if reference.spelled and candidate.spelled and reference.spelled != candidate.spelled:
        first = first_difference(reference.spelled, candidate.spelled) * BLOCK
        span = f"{first} to {first + BLOCK - 1}"
        yield f"tokens written out give other ids, first some of entries {span} of the vocabulary"


def changed(what: str, wanted: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """Yield which values of a mapping are others, WHAT it is first.

    >>> list(changed("special token", {"pad": 0}, {"pad": 4}))
    ['special token pad: expected 0, found 4']
    """
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            yield f"{what} {name}: expected {_shown(wanted, name)}, found {_shown(found, name)}"


def _shown(values: Mapping[str, Any], name: str) -> str:
    value = values.get(name)
    return "none" if value is None else repr(value)


def _pair(reference: Reading, candidate: Reading) -> Iterator[str]:
    yield from changed("of a pair of texts, the", reference.pair, candidate.pair)


def _batch(reference: Reading, candidate: Reading) -> Iterator[str]:
    what = f"of two texts padded and cut to {SHORT} tokens, the"
    yield from changed(what, reference.batch, candidate.batch)


def _chats(reference: Reading, candidate: Reading) -> Iterator[str]:
    if bool(reference.chats) != bool(candidate.chats):
        side = "candidate" if reference.chats else "reference"
        yield f"the {side} has no chat template, the other side has one"
        return
    names = [{words.partition(" (")[2] for words in it.chats} for it in (reference, candidate)]
    for name in sorted(names[0] ^ names[1]):
        side = "reference" if name in names[1] else "candidate"
        called = f"named {name[:-1]}" if name else "without a name"
        yield f"the {side} has no chat template {called}, the other side has one"
    for words in sorted(reference.chats.keys() | candidate.chats.keys()):
        wanted, found = (_chat(it.chats, words) for it in (reference, candidate))
        if wanted is not None and found is not None and wanted != found:
            yield f"the chat template, {words}, differs {text_difference(wanted, found)}"


def _chat(chats: Mapping[str, str], words: str) -> str | None:
    """Return the chat called WORDS; to a template that does not read a variable it is one without.

    A golden of before has no chats with variables, nor the latest of the others.
    """
    _, opening, name = words.partition(" (")
    latest = f"{LATEST}{opening}{name}" in chats
    plain = f"{PLAIN}{opening}{name}" if words.startswith(SET) and latest else words
    return chats.get(words, chats.get(plain))


def _named(what: str, field: str) -> Compare:
    return lambda wanted, found: changed(what, getattr(wanted, field), getattr(found, field))


QUESTIONS: Final[Mapping[str, Compare]] = {
    "ids": _ids,
    "characters": _characters,
    "added tokens": _named("added token", "added"),
    "tokens inside text": _tokens,
    "vocabulary": _entries,
    "tokens written out": _spelled,
    "decoded text": _decoded,
    "special tokens left out": _skipped,
    "special tokens": _named("special token", "special"),
    "pairs of texts": _pair,
    "padding and truncation": _named("setting", "settings"),
    "batches": _batch,
    "chat template": _chats,
}


def problems_of_reading(reference: Reading, candidate: Reading) -> dict[str, list[str]]:
    """Return what differs in how a library reads two tokenizers, by the question asked."""
    return {name: list(compare(reference, candidate)) for name, compare in QUESTIONS.items()}


def problems_of_files(reference: TextSide, candidate: TextSide) -> dict[str, list[str]]:
    """Return what differs in files that the libraries above do not read, or not all of them."""
    both = reference.vocabularies.keys() & candidate.vocabularies.keys()
    vocabularies = [
        f"{name} holds other entries, whatever tokenizer.json says"
        for name in sorted(both)
        if reference.vocabularies[name] != candidate.vocabularies[name]
    ]
    settings = [
        problem
        for name in sorted(reference.documents.keys() & candidate.documents.keys())
        for problem in changed(f"{name},", reference.documents[name], candidate.documents[name])
    ]
    sides = (reference.generation, candidate.generation)
    return {
        "generation": list(changed("generation,", *(side or {} for side in sides)))
        if None not in sides
        else [],
        "vocabulary files": vocabularies,
        "other settings": settings,
    }


def rewritten(reference: Reading, candidate: Reading) -> list[str]:
    """Return the parts of a tokenizer that are written in another way."""
    both = reference.pipeline.keys() & candidate.pipeline.keys()
    return [name for name in sorted(both) if reference.pipeline[name] != candidate.pipeline[name]]
