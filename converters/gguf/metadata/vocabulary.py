"""The tokens of a GGUF file, held against the tokenizer of a directory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ...configs.special_tokens import GENERATION, TOKEN, as_ids, tokenizer_ids
from ...documents import TOKENIZER
from ...documents.fields import (
    FLAG,
    NUMBER,
    TEXT,
    either,
    listing,
    mapping,
    read_fields,
    record,
    whole,
)
from ..file import GgufFile

PREFIX: Final = "tokenizer.ggml"
# llama.cpp's names of tokenizers that keep the tokens as they are written, and one that does not.
AS_WRITTEN: Final = ("gpt2", "llama", "t5")
PIECES: Final = "bert"
UNUSED: Final = re.compile(r"\[PAD-?\d+\]")  # written for an id that no token has
MODEL: Final = record(
    {
        "vocab": either(mapping(whole(2**31 - 1)), listing(listing(either(TEXT, NUMBER)))),
        "merges": listing(either(TEXT, listing(TEXT))),
    }
)
SPACE: Final = "\N{LOWER ONE EIGHTH BLOCK}"


def text_differences(file: GgufFile, config: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """Yield where the tokens, merges or special ids of FILE are not those of FOLDER, in words.

    What one of them lacks is not compared; FOLDER tells its tokens in ``tokenizer.json``.
    """
    fields = {"model": MODEL, "added_tokens": listing(TOKEN)}
    found = read_fields(folder / "tokenizer.json", fields, TOKENIZER)
    model = found.get("model") or {}
    rows = [row for row in found.get("added_tokens") or () if {"id", "content"} <= row.keys()]
    added = {row["id"]: row["content"] for row in rows}
    yield from token_differences(file, tokens_of(model), added)
    yield from merge_differences(file, model)
    yield from special_differences(file, config, folder)


def tokens_of(model: Mapping[str, Any]) -> dict[int, str]:
    """Return the tokens of the MODEL of a ``tokenizer.json`` by their ids.

    >>> tokens_of({"vocab": {"a": 1}}), tokens_of({"vocab": [["a", -0.5]]})
    ({1: 'a'}, {0: 'a'})
    """
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        return {number: token for token, number in vocabulary.items()}
    rows = vocabulary if isinstance(vocabulary, list) else []
    return {number: str(row[0]) for number, row in enumerate(rows) if row}


def token_differences(
    file: GgufFile, tokens: dict[int, str], added: dict[int, str]
) -> Iterator[str]:
    """Yield how many of the TOKENS, and of those ADDED, are others in FILE, and the first."""
    kind, theirs = file.value(f"{PREFIX}.model"), file.texts(f"{PREFIX}.tokens")
    if theirs is None or kind not in (*AS_WRITTEN, PIECES):
        return
    plain = {number: as_piece(it) if kind == PIECES else it for number, it in tokens.items()}
    wanted = plain | {number: spaced(it) for number, it in added.items()}
    wrong = []
    for number, token in sorted(wanted.items()):
        there = theirs[number] if number < len(theirs) else None
        if there is None or not UNUSED.fullmatch(there) or UNUSED.fullmatch(token):
            seen = spaced(there) if number in added and there else there
            wrong += [(number, there, token)] if seen != token else []
    if wrong:
        number, there, token = wrong[0]
        has = "not there" if there is None else repr(there)
        yield f"{len(wrong):,} tokens are others; id {number} is {has}, in tokenizer.json {token!r}"


def as_piece(token: str) -> str:
    """Return TOKEN of WordPiece as llama.cpp writes it: beginnings are marked, and not what goes on.

    >>> as_piece("##s") + as_piece("cat") + as_piece("[CLS]")
    's▁cat[CLS]'
    """
    if token.startswith("[") and token.endswith("]"):
        return token
    return token[2:] if token.startswith("##") else SPACE + token


def spaced(token: str) -> str:
    """Return an added TOKEN as it is told from others: its spaces are written in two ways.

    >>> spaced("▁<eot>"), spaced("a▁b")
    ('<eot>', 'a b')
    """
    return token.replace(SPACE, " ").strip() or token


def merge_differences(file: GgufFile, model: Mapping[str, Any]) -> Iterator[str]:
    """Yield which merge of MODEL is the first that is another in FILE."""
    theirs, merges = file.texts(f"{PREFIX}.merges"), model.get("merges")
    if not theirs or not isinstance(merges, list):
        return
    ours = [
        it if isinstance(it, str) else " ".join(part.replace(" ", "Ġ") for part in it)
        for it in merges
    ]
    for number, (there, here) in enumerate(zip(theirs, ours, strict=False)):
        if there != here:
            yield f"merge {number} is {there!r}, in tokenizer.json {here!r}"
            return
    if len(theirs) != len(ours):
        yield f"it has {len(theirs):,} merges, tokenizer.json {len(ours):,}"


def special_differences(file: GgufFile, config: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """Yield which ids that begin or end a text no file of FOLDER names as FILE does."""
    generation = read_fields(folder / "generation_config.json", GENERATION)
    named, text = tokenizer_ids(folder), config.get("text_config")
    for kind in ("bos", "eos"):
        own, key = file.value(f"{PREFIX}.{kind}_token_id"), f"{kind}_token_id"
        parts = [it for it in (config, text, generation) if isinstance(it, Mapping)]
        known = {number for it in parts for number in as_ids(it.get(key))} | set(
            as_ids(named.get(kind))
        )
        if own is not None and known and own not in known:
            yield f"{PREFIX}.{key} is {own}, in the files of {folder.name} {sorted(known)}"
    settings = read_fields(folder / "tokenizer_config.json", {"add_bos_token": FLAG})
    own, ours = file.value(f"{PREFIX}.add_bos_token"), settings.get("add_bos_token")
    if own is not None and ours is not None and own != ours:
        yield f"{PREFIX}.add_bos_token is {own}, in tokenizer_config.json {ours}"
