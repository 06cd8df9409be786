"""The source of Python's standard library as text, and a tokenizer that was trained on it."""

from __future__ import annotations

import hashlib
import json
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from ...converters.common.steps import step
from ..data.stdlib_pairs import library_sources

VOCABULARY: Final = 2048
END: Final = "<|end|>"
TOKENIZER: Final = "tokenizer"
LARGEST: Final = 60_000  # characters of a module; longer ones are tables more often than programs
CHARACTERS: Final[dict[str, int]] = {"test": 150_000, "validation": 150_000, "train": 3_000_000}


def write_library(target: Path) -> None:
    """Write to TARGET ``train.jsonl``, ``validation.jsonl``, ``test.jsonl`` (``text``) and ``tokenizer``."""
    step("gathering the source of Python's standard library")
    splits = split_texts(_modules(Path(sysconfig.get_path("stdlib"))))
    for name, texts in splits.items():
        lines = (json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
        (target / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    _save_tokenizer(splits["train"], target / TOKENIZER)


def split_texts(texts: Iterable[str]) -> dict[str, list[str]]:
    """Split TEXTS in the order of their MD5, until each split has its number of characters."""
    ordered = sorted(texts, key=lambda text: hashlib.md5(text.encode()).digest())  # noqa: S324 - an order, not a secret
    splits: dict[str, list[str]] = {name: [] for name in CHARACTERS}
    sizes = dict.fromkeys(CHARACTERS, 0)
    for text in ordered:
        name = next((it for it, most in CHARACTERS.items() if sizes[it] < most), None)
        if name is None:
            break
        splits[name].append(text)
        sizes[name] += len(text)
    return splits


def _modules(root: Path) -> set[str]:
    """Return the text of every module below ROOT that is neither empty nor very long."""
    texts = {path.read_text(encoding="utf-8", errors="replace") for path in library_sources(root)}
    return {text for text in texts if text.strip() and len(text) <= LARGEST}


def _save_tokenizer(texts: Sequence[str], target: Path) -> None:
    """Write to TARGET a tokenizer of bytes and their commonest pairs in TEXTS (Sennrich et al. 2016)."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer: Any = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    target.mkdir()
    tokenizer.save(str(target / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": END}
    (target / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
