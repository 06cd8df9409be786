"""Ids of special tokens, which four files of a model directory may tell differently.

Generation stops at the ids of ``generation_config.json``; MLX libraries read ``config.json`` first;
the tokenizer has an opinion of its own. What one of them lacks, it gets from the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ..documents import TOKENIZER
from ..documents.fields import (
    IDS,
    TEXT,
    Field,
    either,
    listing,
    mapping,
    read_fields,
    record,
    whole,
)

Fields = Mapping[str, Field]
Config = Mapping[str, Any]
KINDS: Final = ("bos", "eos", "pad")
TOKEN: Final = record({"content": TEXT, "id": whole(2**31 - 1)})
GENERATION: Final[Fields] = {f"{kind}_token_id": IDS for kind in KINDS}
SETTINGS: Final[Fields] = {f"{kind}_token": either(TEXT, TOKEN) for kind in KINDS}
TOKENS: Final[Fields] = {"model": mapping(), "added_tokens": listing(TOKEN)}


def as_ids(value: Any) -> list[int]:
    """Return an entry of a configuration, a number or a list of them, as a list.

    >>> as_ids(2), as_ids([2, 3]), as_ids(None)
    ([2], [2, 3], [])
    """
    found = value if isinstance(value, list) else [value]
    return [item for item in found if isinstance(item, int) and not isinstance(item, bool)]


def tokenizer_ids(folder: Path) -> dict[str, int]:
    """Return the ids of the special tokens that ``tokenizer_config.json`` of FOLDER names."""
    settings = read_fields(folder / "tokenizer_config.json", SETTINGS)
    tokens = read_fields(folder / "tokenizer.json", TOKENS, TOKENIZER)
    vocabulary = (tokens.get("model") or {}).get("vocab")
    ids = dict(vocabulary) if isinstance(vocabulary, dict) else {}
    ids |= {row.get("content"): row.get("id") for row in tokens.get("added_tokens") or ()}
    found = {}
    for kind in KINDS:
        token = settings.get(f"{kind}_token")
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str) and isinstance(ids.get(text), int):
            found[kind] = ids[text]
    return found


def reconciled(config: Config, folder: Path) -> dict[str, Any]:
    """Return the entries of CONFIG that should change so that the files of FOLDER agree.

    ``eos_token_id`` becomes what ``generation_config.json`` says, since that is where the source
    stops; a missing id is taken from there, or from the tokenizer. An id that is there stays.

    >>> reconciled({"eos_token_id": 2}, Path("/nowhere"))
    {}
    """
    generation = read_fields(folder / "generation_config.json", GENERATION)
    tokenizer = tokenizer_ids(folder)
    changes: dict[str, Any] = {}
    for kind in KINDS:
        key = f"{kind}_token_id"
        own = as_ids(config.get(key, _text(config).get(key)))
        declared = as_ids(generation.get(key)) or own or as_ids(tokenizer.get(kind))
        wanted = declared if kind == "eos" or not own else own
        if wanted and wanted != own:
            changes[key] = wanted if len(wanted) > 1 else wanted[0]
    return changes


def _text(config: Config) -> Config:
    nested = config.get("text_config")
    return nested if isinstance(nested, Mapping) else {}
