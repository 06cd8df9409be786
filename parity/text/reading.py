"""What one library makes of a tokenizer: ids, text again, chats and settings, as JSON values."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

import xxhash

from ...converters.documents import TOKENIZER, parse_json
from .chats import CHATS, Chat, settings_chats
from .phrases import SECOND, TEXTS, character_blocks, token_text
from .tokenizers import Tokenizer

LONGEST: Final = 1 << 40  # transformers writes 1e30 where a tokenizer has no longest input
SHORT: Final = 8  # tokens to which a batch is cut
LARGE: Final = frozenset(("vocab", "merges"))  # of a model: hashed block by block
BLOCK: Final = 256  # of their entries with one hash
UNDATED: Final = "{% macro strftime_now(format) %}{{ format }}{% endmacro %}"  # not today's date
PIPELINE: Final = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
SETTINGS: Final = (
    "padding_side",
    "truncation_side",
    "model_max_length",
    "model_input_names",
    "pad_token_type_id",
    "split_special_tokens",
)


class Reading(NamedTuple):
    """What one library makes of a tokenizer.

    Attributes:
        ids: of every text of ``TEXTS``.
        starts: where in its text each of those ids begins; empty where the library does not say.
        decoded: every row of ``ids`` as text again, special tokens kept and left out.
        tokens: ids of ``token_text`` of every added token.
        skipped: those as text again, special tokens left out.
        pair: ids and token types of a text and a second one.
        characters: hashes of the ids of every block of characters.
        added: ids of added tokens.
        special: ids of special tokens by name.
        entries: hashes of blocks of 256 entries: ``vocabulary``, ``merges``, ``scores``.
        spelled: hashes of blocks of ids of every token's own text; empty where Python is slow.
        pipeline: hashes of how text is prepared and put together; a difference here is none in ids.
        settings: of padding and truncation.
        batch: ids and mask of two texts padded and cut to eight tokens.
        chats: the conversations of ``CHATS``, and one for each variable that the chat template reads
            besides, as it renders them.
    """

    ids: list[list[int]]
    starts: list[list[int]]
    decoded: list[list[str]]
    tokens: dict[str, list[int]]
    skipped: dict[str, str]
    pair: dict[str, list[int]]
    characters: list[str]
    added: dict[str, int]
    special: dict[str, int]
    entries: dict[str, list[str]]
    spelled: list[str]
    pipeline: dict[str, str]
    settings: dict[str, Any]
    batch: dict[str, Any]
    chats: dict[str, str]


def short_hash(content: Any) -> str:
    """Return eight hexadecimal digits that stand for CONTENT, JSON values."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return xxhash.xxh3_64_hexdigest(text.encode())[:8]


def read(tokenizer: Tokenizer, tokens: Iterable[str] = ()) -> Reading:
    """Return what TOKENIZER does.

    Args:
        tokenizer: of one directory, read by one library.
        tokens: more tokens to look for inside text, besides those that were added to TOKENIZER.
    """
    added, decode = _added(tokenizer), _decoder(tokenizer)
    ids = [tokenizer.encode(text) for text in TEXTS]
    texts = dict.fromkeys([*sorted(added, key=added.__getitem__), *tokens])
    inside = {token: tokenizer.encode(token_text(token)) for token in texts}
    file = {}
    if tokenizer.rust:
        file = parse_json(tokenizer.rust.to_str(), "tokenizer.json", TOKENIZER)
    return Reading(
        ids=ids,
        starts=_starts(tokenizer),
        decoded=[[decode(row, False), decode(row, True)] for row in ids],
        tokens=inside,
        skipped={token: decode(row, True) for token, row in inside.items()},
        pair=_pair(tokenizer),
        characters=[short_hash(tokenizer.encode(text)) for _, text in character_blocks()],
        added=added,
        special=tokenizer.special,
        entries=_entries(tokenizer, file.get("model", {}), added),
        spelled=_spelled(tokenizer),
        pipeline=_pipeline(file),
        settings={**_settings(tokenizer), "dropout": file.get("model", {}).get("dropout")},
        batch=_batch(tokenizer),
        chats=_chats(tokenizer),
    )


def _pipeline(file: Mapping[str, Any]) -> dict[str, str]:
    if not file:
        return {}
    algorithm = {key: value for key, value in file["model"].items() if key not in LARGE}
    parts = {"algorithm": algorithm, **{name: file.get(name) for name in PIPELINE}}
    return {name: short_hash(part) for name, part in parts.items()}


def _added(tokenizer: Tokenizer) -> dict[str, int]:
    if tokenizer.library == "transformers":
        return {str(token): int(row) for row, token in tokenizer.own.added_tokens_decoder.items()}
    return {it.content: row for row, it in tokenizer.own.get_added_tokens_decoder().items()}


def _decoder(tokenizer: Tokenizer) -> Callable[[list[int], bool], str]:
    own = tokenizer.own
    return lambda ids, skip: str(own.decode(ids, skip_special_tokens=skip))


def _starts(tokenizer: Tokenizer) -> list[list[int]]:
    if tokenizer.rust is None:
        return []
    return [[start for start, _ in tokenizer.rust.encode(text).offsets] for text in TEXTS]


def _pair(tokenizer: Tokenizer) -> dict[str, list[int]]:
    if tokenizer.library == "tokenizers":
        both = tokenizer.own.encode(TEXTS[0], SECOND)
        return {"ids": list(both.ids), "types": list(both.type_ids)}
    both = tokenizer.own(TEXTS[0], SECOND, truncation=False)
    names = {"ids": "input_ids", "types": "token_type_ids"}
    return {name: list(both[key]) for name, key in names.items() if key in both}


def _entries(
    tokenizer: Tokenizer, model: Mapping[str, Any], added: Mapping[str, int]
) -> dict[str, list[str]]:
    """Return hashes of the vocabulary, in the order of ids, and of what the algorithm has besides."""
    own = tokenizer.own.get_vocab()
    found: dict[str, list[Any]] = {"vocabulary": sorted(own.items(), key=itemgetter(1))}
    if merges := model.get("merges"):
        found["merges"] = merges
    if isinstance(pieces := model.get("vocab"), list):
        found["scores"] = [row for row in pieces if row[0] not in added]
    return {name: _block_hashes(rows) for name, rows in found.items()}


def _spelled(tokenizer: Tokenizer) -> list[str]:
    """Return hashes of the ids of what every token stands for: what is rare is told here alone."""
    rust = tokenizer.rust
    if rust is None:
        return []
    rows = sorted(rust.get_vocab().values())
    texts = rust.decode_batch([[row] for row in rows], skip_special_tokens=False)
    found = rust.encode_batch_fast(texts, add_special_tokens=False)
    return _block_hashes([list(it.ids) for it in found])


def _block_hashes(rows: Sequence[Any]) -> list[str]:
    return [short_hash(rows[first : first + BLOCK]) for first in range(0, len(rows), BLOCK)]


def _settings(tokenizer: Tokenizer) -> dict[str, Any]:
    own = tokenizer.own
    if tokenizer.library == "tokenizers":
        return dict(tokenizer.filed)
    found = {name: getattr(own, name, None) for name in SETTINGS}
    limit = found["model_max_length"]
    return found | {"model_max_length": limit if limit is not None and limit < LONGEST else None}


def _batch(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return what padding and truncation do; a tokenizer without a padding token cannot pad."""
    if tokenizer.library == "tokenizers":
        return {}
    padding = "pad" in tokenizer.special
    rows = tokenizer.own(
        [TEXTS[0], "a"], padding=padding, truncation=True, max_length=SHORT, verbose=False
    )
    return {name: [list(row) for row in rows[name]] for name in sorted(rows)}


def _chats(tokenizer: Tokenizer) -> dict[str, str]:
    """Return CHATS as rendered by every template, those with a name of their own by that."""
    if tokenizer.render is None:
        return {}
    templates = tokenizer.own.chat_template
    named = {"": templates} if isinstance(templates, str) else dict(templates)
    return {
        f"{words} ({name})" if name else words: _rendered(tokenizer.render, chat, template)
        for name, template in sorted(named.items())
        for words, chat in (CHATS | settings_chats(template)).items()
    }


def _rendered(render: Callable[..., str], chat: Chat, template: str) -> str:
    """Return CHAT as text, or what TEMPLATE says of it; the date is the same on every day."""
    dated = UNDATED + template if "strftime_now" in template else template
    try:
        return render(chat.messages, chat_template=dated, **chat.options)
    except Exception as error:  # a template is a program and may raise anything
        return f"(the template raises {type(error).__name__}: {str(error).partition(chr(10))[0]})"
