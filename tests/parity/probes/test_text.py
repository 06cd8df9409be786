"""The text side is compared as users meet it: ids, special and stop ids, rendered templates."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from weighbridge.parity.probes import tokenizers
from weighbridge.parity.probes.sentences import SENTENCES
from weighbridge.parity.probes.text import compare_sides, read_text_side

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


def compare(reference, candidate):
    return compare_sides(read_text_side(reference), read_text_side(candidate))


def lower_case_off(folder):
    config = json.loads((folder / "tokenizer.json").read_text())
    config["normalizer"]["lowercase"] = False
    (folder / "tokenizer.json").write_text(json.dumps(config))


def another_padding(folder):
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["pad_token"] = "[MASK]"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def another_stop(folder):
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 2]}))


def another_template(folder):
    (folder / "chat_template.jinja").write_text(TEMPLATE)


FAULTS = {
    "lower case": (lower_case_off, "sentences give other ids \\(read by tokenizers\\)"),
    "padding token": (another_padding, "special token pad: expected 0, found 4"),
    "stop ids": (another_stop, r"stop ids: expected \[\], found \[2, 3\]"),
    "chat template": (another_template, "chat template"),
}


@pytest.fixture
def copied(tiny_bert_dir, tmp_path):
    return shutil.copytree(tiny_bert_dir, tmp_path / "copy")


def test_a_copy_speaks_the_same(tiny_bert_dir, copied):
    stage = compare(tiny_bert_dir, copied)
    assert (stage.status, stage.figures["sentences"]) == ("pass", 14)


@pytest.mark.parametrize(("damage", "said"), FAULTS.values(), ids=FAULTS)
def test_a_fault_of_the_text_side_is_found(tiny_bert_dir, copied, damage, said):
    damage(copied)
    stage = compare(tiny_bert_dir, copied)
    assert stage.status == "fail"
    assert re.search(said, stage.detail)


def test_a_side_without_a_tokenizer_fails(tiny_bert_dir, tmp_path):
    assert compare(tiny_bert_dir, tmp_path).status == "fail"
    assert compare(tmp_path, tiny_bert_dir).status == "fail"


def test_no_tokenizer_on_either_side_is_nothing_to_compare(tmp_path):
    assert compare(tmp_path, None).status == "skipped"


def test_without_transformers_the_fast_tokenizer_reads_the_same_ids(tiny_bert_dir, monkeypatch):
    expected = read_text_side(tiny_bert_dir)
    found = tokenizers._from_tokenizers(tiny_bert_dir)
    assert [found.encode(text) for text in SENTENCES] == expected.ids["transformers"]
    assert found.special.items() <= expected.special.items()


def test_sides_that_no_library_reads_are_compared_by_their_bytes(
    tiny_bert_dir, copied, monkeypatch
):
    monkeypatch.setattr("weighbridge.parity.probes.text.load_tokenizers", lambda folder: [])
    assert compare(tiny_bert_dir, copied).status == "pass"
    lower_case_off(copied)
    assert compare(tiny_bert_dir, copied).status == "unverified"
