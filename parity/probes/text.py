"""The text side: the same words must become the same ids on both sides of a bridge."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from ...converters.configs.special_tokens import GENERATION, as_ids
from ...converters.documents.fields import read_fields
from ..check.verdict import Stage
from .sentences import SENTENCES
from .tokenizers import Tokenizer, has_tokenizer, load_tokenizers, tokenizer_hashes

MESSAGES: Final = [
    {"role": "user", "content": "What does a weighbridge weigh?"},
    {"role": "assistant", "content": "Every load, twice: on the way in and on the way out."},
    {"role": "user", "content": "  Even   <this> one?\n"},
]


class TextSide(NamedTuple):
    """What a directory does with text, as JSON values.

    Attributes:
        ids: ids of every probe sentence, by the library that read the tokenizer.
        special: ids of special tokens.
        stop: ids that end generation, from ``generation_config.json``.
        template: the probe messages as the chat template renders them; ``None`` without one.
        files: hashes of the tokenizer's files.
    """

    ids: dict[str, list[list[int]]]
    special: dict[str, int]
    stop: list[int]
    template: str | None
    files: dict[str, str]


def _stop_ids(folder: Path) -> list[int]:
    generation = read_fields(folder / "generation_config.json", GENERATION)
    return sorted(as_ids(generation.get("eos_token_id")))


def _render(tokenizer: Tokenizer) -> str | None:
    if tokenizer.render is None:
        return None
    try:
        return tokenizer.render(MESSAGES)
    except Exception as error:  # a template is a program and may raise anything
        return f"(the template raises {type(error).__name__})"


def read_text_side(folder: Path | None) -> TextSide | None:
    """Return what FOLDER does with text; ``None`` where it has no tokenizer."""
    if folder is None or not has_tokenizer(folder):
        return None
    files, stop = tokenizer_hashes(folder), _stop_ids(folder)
    readers = load_tokenizers(folder)
    if not readers:
        return TextSide({}, {}, stop, None, files)
    ids = {it.library: [it.encode(sentence) for sentence in SENTENCES] for it in readers}
    return TextSide(ids, readers[0].special, stop, _render(readers[0]), files)


def _id_problems(reference: TextSide, candidate: TextSide) -> list[str]:
    problems = []
    for library in sorted(reference.ids.keys() & candidate.ids.keys()):
        pairs = zip(SENTENCES, reference.ids[library], candidate.ids[library], strict=True)
        different = [sentence for sentence, wanted, found in pairs if wanted != found]
        if different:
            count = f"{len(different)} of {len(SENTENCES)} sentences give other ids"
            problems.append(f"{count} (read by {library}), first: {different[0]!r}")
    return problems


def _mapping_problems(what: str, wanted: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    return [
        f"{what} {name}: expected {wanted.get(name)}, found {found.get(name)}"
        for name in sorted(wanted.keys() | found.keys())
        if wanted.get(name) != found.get(name)
    ]


def text_problems(reference: TextSide, candidate: TextSide) -> list[str]:
    """Return every difference between two text sides, library by library."""
    problems = _id_problems(reference, candidate)
    problems += _mapping_problems("special token", reference.special, candidate.special)
    if reference.stop != candidate.stop:
        problems.append(f"stop ids: expected {reference.stop}, found {candidate.stop}")
    if reference.template != candidate.template:
        problems.append("the chat template renders another text")
    return problems


def _compare_files(reference: TextSide, candidate: TextSide) -> Stage:
    """Compare by bytes, where the two sides were not read by the same library."""
    if reference.files == candidate.files and reference.stop == candidate.stop:
        return Stage("text", "pass", f"{len(reference.files)} tokenizer files equal byte for byte")
    return Stage(
        "text",
        "unverified",
        "tokenizer files differ and no library read both sides; install transformers",
    )


def compare_sides(reference: TextSide | None, candidate: TextSide | None) -> Stage:
    """Compare two text sides.

    Neither has a tokenizer: skipped. Only one has: fail.
    """
    if reference is None and candidate is None:
        return Stage("text", "skipped", "neither side has a tokenizer")
    if reference is None or candidate is None:
        side = "reference" if reference is None else "candidate"
        return Stage("text", "fail", f"the {side} has no tokenizer, the other side has one")
    if not reference.ids.keys() & candidate.ids.keys():
        return _compare_files(reference, candidate)
    if problems := text_problems(reference, candidate):
        return Stage("text", "fail", "; ".join(problems), {"problems": problems})
    tokens = sum(map(len, next(iter(reference.ids.values()))))
    parts = [f"{len(SENTENCES)} sentences give the same {tokens} ids", "special and stop ids equal"]
    parts += ["chat template equal"] if reference.template is not None else []
    return Stage("text", "pass", ", ".join(parts), {"sentences": len(SENTENCES), "ids": tokens})
