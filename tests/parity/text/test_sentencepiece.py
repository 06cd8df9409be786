"""A tokenizer that is a SentencePiece model alone is read, and a piece exchanged in it differs."""

from __future__ import annotations

import json
import shutil

import pytest
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.tests.support.atlas.tiny import make

sentencepiece = pytest.importorskip("sentencepiece")
TEXT = "the quick brown fox jumps over the lazy dog {} times and again"


@pytest.fixture
def source(tmp_path):
    """Return the folder of a tiny Llama with a SentencePiece model and no tokenizer.json."""
    folder = make("llama", tmp_path / "source").folder
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([TEXT.format(number) for number in range(400)]),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=100,
        hard_vocab_limit=False,
        minloglevel=3,
    )
    (folder / "tokenizer.vocab").unlink()
    settings = {"tokenizer_class": "LlamaTokenizer", "legacy": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def exchange(file):
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(file.read_bytes())
    one, other = model.pieces[20], model.pieces[21]
    one.piece, other.piece = other.piece, one.piece
    file.write_bytes(model.SerializeToString())


def test_a_piece_exchanged_for_another_differs_at_the_first_text(source, tmp_path):
    shutil.copytree(source, tmp_path / "other")
    exchange(tmp_path / "other" / "tokenizer.model")
    asked = ["parity", "check", str(source), str(tmp_path / "other"), "--quick", "--json"]
    result = CliRunner().invoke(main, asked)
    stage = next(it for it in json.loads(result.stdout)["stages"] if it["name"] == "text")
    assert (result.exit_code, stage["status"]) == (1, "fail")
    assert "texts give other ids" in stage["detail"]
