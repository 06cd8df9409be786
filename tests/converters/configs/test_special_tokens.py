"""What the files of a directory say of special tokens, and what they agree on."""

import json

import pytest

from weighbridge.converters.configs.special_tokens import reconciled, tokenizer_ids
from weighbridge.errors import BadInputError


@pytest.fixture
def folder(tmp_path):
    tokens = [
        {"id": 5, "content": "<s>"},
        {"id": 6, "content": "</s>"},
        {"id": 7, "content": "<p>"},
    ]
    (tmp_path / "tokenizer.json").write_text(
        json.dumps({"added_tokens": tokens, "model": {"vocab": {"a": 0}}})
    )
    settings = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": "<p>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    return tmp_path


def test_ids_are_those_transformers_reads(minilm_dir):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(minilm_dir)
    assert tokenizer_ids(minilm_dir) == {"pad": tokenizer.pad_token_id}


def test_what_the_config_lacks_comes_from_the_tokenizer(folder):
    assert reconciled({}, folder) == {"bos_token_id": 5, "eos_token_id": 6, "pad_token_id": 7}


def test_what_the_config_says_stays_unless_generation_stops_elsewhere(folder):
    config = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    assert reconciled(config, folder) == {}
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 6]}))
    assert reconciled(config, folder) == {"eos_token_id": [2, 6]}


def test_a_nested_text_config_counts(folder):
    nested = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    assert reconciled({"text_config": nested}, folder) == {}


@pytest.mark.parametrize(
    "name", ["generation_config.json", "tokenizer.json", "tokenizer_config.json"]
)
def test_a_damaged_file_is_refused_by_its_name(tmp_path, name):
    (tmp_path / name).write_text("[]")
    with pytest.raises(BadInputError, match=f"{name}: expected a JSON object, found a list"):
        reconciled({"eos_token_id": 2}, tmp_path)
