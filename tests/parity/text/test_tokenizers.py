"""A tokenizer is found by its files and read by what is installed."""

from __future__ import annotations

from weighbridge.parity.text.files import file_hashes
from weighbridge.parity.text.tokenizers import has_tokenizer, load_tokenizers


def test_each_library_reads_the_directory(tiny_bert_dir):
    readers = load_tokenizers(tiny_bert_dir)
    assert [it.library for it in readers] == ["transformers", "tokenizers"]
    ids = [it.encode("the time of all people") for it in readers]
    assert ids[0] == ids[1]
    assert readers[0].special.items() >= {"pad": 0, "cls": 2, "sep": 3}.items()


def test_long_text_is_not_cut(tiny_bert_dir):
    for reader in load_tokenizers(tiny_bert_dir):
        assert len(reader.encode("time " * 300)) == 302


def test_a_folder_without_files_has_none(tmp_path):
    assert not has_tokenizer(tmp_path)
    assert not has_tokenizer(None)
    assert load_tokenizers(tmp_path) == []


def test_hashes_cover_what_decides_the_ids(tiny_bert_dir):
    assert {"tokenizer.json", "tokenizer_config.json"} <= file_hashes(tiny_bert_dir).keys()
