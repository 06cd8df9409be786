"""Texts and conversations as token ids, by the tokenizer of a directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ....errors import BadInputError
from ....parity.text.tokenizers import TRIAL, has_tokenizer, reading, stderr_closed

Messages = Sequence[Mapping[str, Any]]
Tokenize = Callable[[Sequence[str]], list[list[int]]]


def tokenizer_of(folder: Path | None) -> Path:
    """Return FOLDER, that of the tokenizer of a run.

    Raises:
        BadInputError: the run has none.
    """
    if folder is None:
        raise BadInputError(
            "texts need a tokenizer, and the model has no directory to hold one; --set tokenizer=DIR"
        )
    return folder


def load_tokenizer(folder: Path) -> Tokenize:
    """Return the tokenizer in FOLDER as a function, without cutting and padding.

    Raises:
        BadInputError: the folder holds none.
    """
    if not has_tokenizer(folder):
        raise BadInputError(f"{folder}: no tokenizer there")
    file = folder / "tokenizer.json"
    if not file.is_file():
        return Coder(folder).encode
    from tokenizers import Tokenizer

    with reading(file), stderr_closed():
        fast = Tokenizer.from_file(str(file))
        fast.encode(TRIAL)
    fast.no_padding()
    fast.no_truncation()
    return partial(_encoded, fast, file)


def _encoded(fast: Any, file: Path, texts: Sequence[str]) -> list[list[int]]:
    with reading(file):
        return [encoding.ids for encoding in fast.encode_batch(list(texts))]


class Coder:
    """The tokenizer in FOLDER as transformers reads it; nothing is cut or padded.

    Attributes:
        size: how many ids it knows.
        end: the id that ends a text, if there is one.
        mask: the id that hides a token, if there is one.
        special: the ids of special tokens.
        chats: whether it has a chat template.

    Raises:
        BadInputError: there is none, or it is damaged.
    """

    def __init__(self, folder: Path) -> None:
        if not has_tokenizer(folder):
            raise BadInputError(f"{folder}: no tokenizer there")
        self._folder = folder
        with reading(folder), stderr_closed():
            from transformers import AutoTokenizer

            self._own: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            self._own.encode(TRIAL)
        self.size = len(self._own)
        self.end: int | None = self._own.eos_token_id
        self.mask: int | None = getattr(self._own, "mask_token_id", None)
        self.special: frozenset[int] = frozenset(self._own.all_special_ids)
        self.chats = bool(getattr(self._own, "chat_template", None))

    def encode(self, texts: Sequence[str], *, bare: bool = False) -> list[list[int]]:
        """Return the ids of TEXTS, with special tokens unless BARE."""
        if not texts:
            return []
        with reading(self._folder):
            options = {"truncation": False, "padding": False, "verbose": False}
            coded = self._own(list(texts), add_special_tokens=not bare, **options)
            return [list(ids) for ids in coded["input_ids"]]

    def encode_written(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of TEXTS as a decoder writes them: with the target's language and vocabulary, where there are two."""
        with reading(self._folder):
            options = {"truncation": False, "padding": False, "verbose": False}
            return [list(ids) for ids in self._own(text_target=list(texts), **options)["input_ids"]]

    def ended(self, ids: Sequence[int]) -> list[int]:
        """Return IDS with the id that ends a text behind them, where there is one."""
        missing = self.end is not None and list(ids[-1:]) != [self.end]
        return [*ids, self.end] if missing and self.end is not None else list(ids)

    def open(self, ids: Sequence[int]) -> list[int]:
        """Return IDS without the id that ends a text."""
        return list(ids[:-1] if self.end is not None and list(ids[-1:]) == [self.end] else ids)

    def chat(self, messages: Messages, tools: Any = None, *, asked: bool = False) -> list[int]:
        """Return the ids of a conversation by the chat template.

        Args:
            messages: as ``apply_chat_template`` takes them.
            tools: likewise.
            asked: whether an answer is to follow.

        Raises:
            ValueError: the template refuses them; says why.
        """
        try:
            ids = self._own.apply_chat_template(
                list(messages), tools=tools, add_generation_prompt=asked, return_dict=False
            )
        except Exception as error:  # templates are code of the tokenizer's author
            raise ValueError(f"{type(error).__name__}: {error}") from None
        return list(ids)
