"""``examples/search.py`` as a user starts it: what it finds, and what it says of what it cannot search."""

from __future__ import annotations

import sys

import pytest
import transformers

from examples import search
from tests.conftest import save_tokenizer, tiny_vocabulary

SIZES = {"d_model": 40, "d_kv": 6, "d_ff": 40, "num_layers": 1, "num_heads": 4}


@pytest.fixture
def model(tmp_path):
    words, folder = tiny_vocabulary(), tmp_path / "model"
    config = transformers.T5Config(**SIZES, vocab_size=len(words))
    transformers.T5EncoderModel(config).save_pretrained(folder)
    save_tokenizer(words, folder)
    return folder


@pytest.fixture
def texts(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "one.md").write_text(
        "# Heading\n\nthe first of all files\n\nonly the last one made\n"
    )
    return folder


@pytest.fixture
def started(monkeypatch):
    def start(*words):
        monkeypatch.setattr(sys, "argv", ["search.py", *map(str, words)])
        search.main()

    return start


def test_a_query_finds_the_paragraph_with_its_words(model, texts, started, capsys):
    for _ in ("embedded", "kept"):
        started(model, texts, "only the last one", "--share", "0")
        assert capsys.readouterr().out.splitlines()[0].endswith("one.md  only the last one made")


def test_what_cannot_be_searched_is_named(model, texts, started, capsys, tmp_path):
    (tmp_path / "none").mkdir()
    with pytest.raises(SystemExit, match="none has no paragraph of 4 words"):
        started(model, tmp_path / "none", "files")
    with pytest.raises(SystemExit, match="none has no text encoder of transformers: "):
        started(tmp_path / "none", texts, "files")
    (model / "tokenizer.json").unlink()
    (model / "vocab.txt").unlink()
    with pytest.raises(SystemExit, match="model: no tokenizer there"):
        started(model, texts, "files")
    for words in (("away", texts), (model, "away")):
        with pytest.raises(SystemExit):
            started(*words, "files")
        assert "away is no folder" in capsys.readouterr().err
