"""A tokenizer of bytes with a chat template, which every text goes through unchanged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

TEMPLATE = (
    "{% if tools %}<|{{ tools[0].function.name }}|>{% endif %}"
    "{% for message in messages %}"
    "{% if message.role == 'robot' %}{{ raise_exception('no robots') }}{% endif %}"
    "<{{ message.role }}>{{ message.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def save_tokenizer(folder: Path, template: str | None) -> Path:
    """Write to FOLDER a tokenizer whose ids are bytes, with ``<end>`` as its last token."""
    from tokenizers import ByteLevelBPETokenizer
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import PreTrainedTokenizerFast

    special = ["<end>", "<user>", "<assistant>", "<mask>"]
    letters = {letter: number for number, letter in enumerate(sorted(ByteLevel.alphabet()))}
    own = ByteLevelBPETokenizer(vocab=letters, merges=[])
    own.add_special_tokens(special)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=own._tokenizer, eos_token="<end>", mask_token="<mask>"
    )
    fast.chat_template = template
    fast.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def chat_tokenizer(tmp_path_factory) -> Path:
    """Return the directory of a tokenizer with a chat template."""
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer") / "chat", TEMPLATE)


@pytest.fixture(scope="session")
def plain_tokenizer(tmp_path_factory) -> Path:
    """Return the directory of the same tokenizer without a chat template."""
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer") / "plain", None)


@pytest.fixture
def write_rows(tmp_path):
    """Return a function that writes rows as JSON lines."""

    def writing(rows, name="rows.jsonl"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return writing
