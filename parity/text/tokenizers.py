"""A model directory's tokenizer as one function, from whichever library can read it."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from ...converters.common.users_code import first_line
from ...converters.documents import read_optional
from ...errors import BadInputError

TOKENIZER_FILES: Final = (
    "tokenizer.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "vocab.txt",
    "vocab.json",
)
SPECIAL_TOKENS: Final = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")

TRIAL: Final = "a b"  # what a tokenizer must take before it is used

Encode = Callable[[str], list[int]]


class Tokenizer(NamedTuple):
    """What parity asks of a tokenizer.

    Attributes:
        library: who read the files, ``transformers`` or ``tokenizers``.
        encode: text to ids, special tokens included.
        special: ids of special tokens by name; empty where the library does not say.
        render: messages to the text of the chat template; ``None`` where there is no template.
        own: the library's object.
        rust: what of ``tokenizers`` works inside of it; ``None`` where Python does the work.
        filed: how ``tokenizer.json`` cuts and pads; that is off in ``encode``.
    """

    library: str
    encode: Encode
    special: dict[str, int]
    render: Callable[..., str] | None
    own: Any
    rust: Any
    filed: Mapping[str, Any] = {}

    @property
    def added(self) -> list[int]:
        """The ids of every added token, the lowest first."""
        if self.rust is not None:
            return sorted(self.rust.get_added_tokens_decoder())
        return sorted(getattr(self.own, "added_tokens_decoder", {}))


def has_tokenizer(folder: Path | None) -> bool:
    """Say whether FOLDER holds a tokenizer's files."""
    return folder is not None and any((folder / name).is_file() for name in TOKENIZER_FILES)


def _special_ids(tokenizer: Any) -> dict[str, int]:
    texts = dict(tokenizer.special_tokens_map)
    named = {name.removesuffix("_token"): text for name, text in texts.items()}
    ids = {
        name: tokenizer.convert_tokens_to_ids(text)
        for name, text in named.items()
        if isinstance(text, str)
    }
    return {name: int(number) for name, number in ids.items() if number is not None}


def _from_transformers(folder: Path) -> Tokenizer:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    render: Any = partial(tokenizer.apply_chat_template, tokenize=False)
    return Tokenizer(
        "transformers",
        lambda text: list(tokenizer.encode(text, truncation=False, verbose=False)),
        _special_ids(tokenizer),
        render if getattr(tokenizer, "chat_template", None) else None,
        tokenizer,
        getattr(tokenizer, "_tokenizer", None),
    )


def _from_tokenizers(folder: Path) -> Tokenizer:
    from tokenizers import Tokenizer as Fast

    tokenizer = Fast.from_file(str(folder / "tokenizer.json"))
    filed = {"truncation": tokenizer.truncation, "padding": tokenizer.padding}
    tokenizer.no_truncation()
    tokenizer.no_padding()
    config = folder / "tokenizer_config.json"
    settings = read_optional(config)
    tokens = {name: settings.get(f"{name}_token") for name in SPECIAL_TOKENS}
    texts = {name: t["content"] if isinstance(t, dict) else t for name, t in tokens.items() if t}
    ids = {name: tokenizer.token_to_id(text) for name, text in texts.items()}
    return Tokenizer(
        "tokenizers",
        lambda text: list(tokenizer.encode(text).ids),
        {name: number for name, number in ids.items() if number is not None},
        None,
        tokenizer,
        tokenizer,
        filed,
    )


def _installed(library: str) -> bool:
    return importlib.util.find_spec(library) is not None


def load_tokenizers(folder: Path | None) -> list[Tokenizer]:
    """Return the tokenizer in FOLDER as each installed library reads it, transformers first.

    They may disagree: transformers rebuilds parts of ``tokenizer.json`` from
    ``tokenizer_config.json``, other libraries take the file as it is.

    Raises:
        BadInputError: the tokenizer's files are damaged.
    """
    if folder is None or not has_tokenizer(folder):
        return []
    readers = [_from_transformers] if _installed("transformers") else []
    if (folder / "tokenizer.json").is_file() and _installed("tokenizers"):
        readers.append(_from_tokenizers)
    with reading(folder), stderr_closed():
        found = [read(folder) for read in readers]
        for tokenizer in found:
            tokenizer.encode(TRIAL)
    return [it._replace(encode=partial(encoded, it.encode, folder)) for it in found]


def encoded(encode: Encode, folder: Path, text: str) -> list[int]:
    """Return what ENCODE, of the tokenizer in FOLDER, makes of TEXT; fails as ``load_tokenizers``."""
    with reading(folder):
        return list(encode(text))


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Tell in one line of a tokenizer in FOLDER that its library cannot read or run.

    Each library raises what it likes: a bare ``Exception``, or a panic of Rust, which is none.
    """
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = first_line(error)
        raise BadInputError(f"{folder}: its tokenizer cannot be read ({reason})") from error


@contextmanager
def stderr_closed() -> Iterator[None]:
    """Lead the process's stderr to nowhere: a panic of Rust prints hundreds of lines there."""
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


def load_tokenizer(folder: Path | None) -> Tokenizer | None:
    """Return the tokenizer in FOLDER; ``None`` if it has none, or no installed library reads it."""
    return next(iter(load_tokenizers(folder)), None)
