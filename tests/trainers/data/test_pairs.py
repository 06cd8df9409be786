"""Pairs of texts: what is dropped, what is counted, what is cut."""

from __future__ import annotations

import json

import numpy as np
import pytest

from weighbridge.errors import BadInputError, MismatchError
from weighbridge.trainers.config import validate
from weighbridge.trainers.data.batches import leaked
from weighbridge.trainers.data.context import Context
from weighbridge.trainers.data.pairs import Pairs, Texts, read_pairs
from weighbridge.trainers.data.reading import read_splits
from weighbridge.trainers.data.tokens.coding import load_tokenizer
from weighbridge.trainers.tasks import build_task

ROWS = [("a b", "c"), ("a b", "d"), ("a b", "c"), (" ", "c"), ("e", ""), ("f", "g")]
LENGTHS = {"query": [3, 5], "document": [4]}
BAD = {
    "{": "line 1: not JSON",
    "[1]": "line 1: expected a JSON object, found a list",
    '{"query": "a"}': "line 1: no text document",
    '{"query": 1, "document": null}': "line 1: no text query and document",
}


def words(texts):
    """Tokenise by letters: [1, ..., 2], so that a cut shows."""
    return [[1, *(ord(letter) for letter in text.replace(" ", "")), 2] for text in texts]


def write(path, rows):
    lines = [json.dumps({"query": query, "document": document}) for query, document in rows]
    path.write_text("\n".join([*lines, ""]))
    return path


def make(*rows):
    return Pairs(Texts(list(rows), {}), words, LENGTHS)


def test_empty_and_repeated_pairs_are_dropped_and_counted(tmp_path):
    texts = read_pairs(write(tmp_path / "p.jsonl", ROWS))
    assert [pair[:2] for pair in texts.pairs] == [("a b", "c"), ("a b", "d"), ("f", "g")]
    assert texts.report == {"pairs": 3, "empty": 2, "duplicates": 1, "shared_texts": 1}


@pytest.mark.parametrize(("line", "message"), BAD.items())
def test_a_line_that_is_no_pair_is_named(tmp_path, line, message):
    path = tmp_path / "p.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(MismatchError, match=message):
        read_pairs(path)


def test_many_bad_lines_are_counted_and_some_shown(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text("".join(f"{' ' * place}{{\n" for place in range(50)))
    with pytest.raises(MismatchError, match="and 30 more"):
        read_pairs(path)


def test_what_is_wrong_with_every_line_is_said_once(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text("{\n" * 50)
    with pytest.raises(MismatchError, match="1 problem\n  all 50 rows: not JSON"):
        read_pairs(path)


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe"])
def test_a_file_without_pairs_is_refused(tmp_path, content):
    path = tmp_path / "p.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadInputError, match=r"p\.jsonl"):
        read_pairs(path)


def test_a_batch_takes_the_smallest_length_that_fits():
    pairs = make(("a", "bb"), ("abc", "b"))
    short, long = pairs.batch([0]), pairs.batch([0, 1])
    assert short.inputs["query_ids"].shape == (1, 3)
    assert long.inputs["query_ids"].tolist() == [[1, 97, 2, 0, 0], [1, 97, 98, 99, 2]]
    assert long.inputs["query_mask"].tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]
    assert long.inputs["document_ids"].shape == (2, 4)
    assert (long.rows, long.tokens) == (2, 3 + 5 + 4 + 3)
    assert long.inputs["query_ids"].dtype == np.int64


def test_a_cut_text_keeps_its_last_token_and_is_counted():
    pairs = make(("abcdefgh", "b"))
    assert pairs.ids["query"] == [[1, 97, 98, 99, 2]]
    assert pairs.report == {"cut_query": 1, "cut_document": 0}


def test_pairs_that_share_a_text_have_a_key_in_common():
    pairs = make(("a", "b"), ("a", "c"), ("b", "a"))
    assert not set(pairs.keys(0)).isdisjoint(pairs.keys(1))
    assert set(pairs.keys(0)).isdisjoint(pairs.keys(2))  # a query is not a document


def test_leaks_are_counted_by_either_text():
    assert leaked(make(("a", "b"), ("c", "d")), make(("a", "x"), ("y", "d"), ("b", "a"))) == 2


def test_the_digest_follows_text_and_tokenizer():
    same, other = make(("a", "b")), make(("a", "c"))
    assert make(("a", "b")).digest == same.digest != other.digest
    assert Pairs(Texts([("a", "b")], {}), lambda t: [[7]] * len(t), LENGTHS).digest != same.digest


def test_the_tokenizer_is_that_of_transformers_without_cutting(tiny_bert_dir):
    from transformers import AutoTokenizer

    texts = ["read the file", "zebra " * 200, ""]
    own = AutoTokenizer.from_pretrained(tiny_bert_dir)(texts, truncation=False)["input_ids"]
    assert load_tokenizer(tiny_bert_dir)(texts) == own


def test_a_folder_without_tokenizer_is_refused(tmp_path):
    with pytest.raises(BadInputError, match="no tokenizer"):
        load_tokenizer(tmp_path)


@pytest.fixture
def split(write_rows, tiny_bert_dir):
    """Return a function that reads rows as the training split of a section."""

    def reading(rows, **section):
        path = str(write_rows(rows))
        data = {"kind": "pairs", "train": path, "validation": path} | section
        config = validate({"model": "m", "data": data, "objective": "contrastive"})
        return read_splits(config.data, Context(tiny_bert_dir))["train"]

    return reading


PAIR = {"query": "the time", "document": "time of day"}


def test_negatives_and_scores_come_with_their_pairs(split, tiny_bert_dir):
    rows = [
        PAIR | {"negative": ["no", "not at all"], "score": 0.5},
        {"query": "a", "document": "b", "negative": ["c", "d"], "score": 1},
    ]
    batch = split(rows).batch([1, 0]).inputs
    own = load_tokenizer(tiny_bert_dir)
    assert batch["negative_ids"].shape[:2] == batch["negative_mask"].shape[:2] == (2, 2)
    kept = [
        [ids[mask == 1].tolist() for ids, mask in zip(*them, strict=True)]
        for them in zip(batch["negative_ids"], batch["negative_mask"], strict=True)
    ]
    assert kept == [own(["c", "d"]), own(["no", "not at all"])]
    assert batch["score"].tolist() == [1, 0.5]
    assert batch["score"].dtype == np.float32


def test_the_width_of_a_row_is_what_it_is_padded_to(split):
    rows = [
        PAIR | {"negative": ["no", "not at all"]},
        PAIR | {"query": "a " * 9, "negative": ["c", "d"]},
    ]
    data = split(rows)
    for row in range(2):
        inputs = data.batch([row]).inputs
        ids = [array for name, array in inputs.items() if name.endswith("ids")]
        assert sum(data.width(row)) == sum(array.size for array in ids)


def test_one_negative_may_be_a_text(split):
    assert split([PAIR | {"negative": "no"}]).batch([0]).inputs["negative_ids"].shape[:2] == (1, 1)


def test_columns_of_other_names_are_read(split):
    data = split(
        [{"question": "a", "answer": "b"}], columns={"query": "question", "document": "answer"}
    )
    assert data.pairs[0][:2] == ("a", "b")


def test_lengths_are_chosen_where_none_are_given(split):
    data = split([{"query": "a " * count, "document": "b"} for count in range(1, 40)])
    assert data.report["cut_query"] == 0
    assert len(data.lengths["query"]) > 4
    assert data.lengths["document"] == (3,)


UNLIKE = {
    "line 2: 1 negatives, and the first row has 2": [
        PAIR | {"negative": ["a", "b"]},
        PAIR | {"negative": "c"},
    ],
    "line 2: no score, unlike the first row": [PAIR | {"score": 1}, PAIR],
    "line 1: score 'good' is no number": [PAIR | {"score": "good"}],
    "line 1: negative is no text, nor a list of texts": [PAIR | {"negative": [1]}],
    "line 1: no text document; is it documents?": [{"query": "a", "documents": "b"}],
}


@pytest.mark.parametrize("problem", UNLIKE)
def test_rows_that_are_not_alike_are_named(split, problem):
    with pytest.raises(MismatchError) as caught:
        split(UNLIKE[problem])
    assert caught.value.problems == (problem,)


def test_longer_texts_may_be_refused(split):
    with pytest.raises(MismatchError, match="1 texts: document"):
        split([PAIR], lengths={"query": [9], "document": [4]}, too_long="refuse")


def test_documents_that_a_decoder_writes_are_coded_in_its_language(tmp_path):
    """The tokenizer of mBART ends what is written with the code of the other language."""
    from transformers import MBartConfig, MBartForConditionalGeneration, MBartTokenizer

    special = ["<s>", "<pad>", "</s>", "<unk>"]
    vocabulary = [(piece, -float(at)) for at, piece in enumerate([*special, "▁a", "▁b", "▁c"])]
    tokenizer = MBartTokenizer(vocab=vocabulary, src_lang="en_XX", tgt_lang="ro_RO")
    sides = [f"{side}_{size}" for side in ("encoder", "decoder") for size in ("layers", "ffn_dim")]
    sizes = dict(zip(sides, (1, 8) * 2, strict=True)) | {"d_model": 8}
    heads = {f"{side}_attention_heads": 2 for side in ("encoder", "decoder")}
    config = MBartConfig(vocab_size=len(tokenizer), max_position_embeddings=32, **sizes, **heads)
    MBartForConditionalGeneration(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    rows = write(tmp_path / "p.jsonl", [("a b", "c"), ("b", "c a"), ("c c", "b")])
    data = {"kind": "pairs"} | {it: str(rows) for it in ("train", "validation")}
    found = {}
    for objective in ("seq2seq_lm", "contrastive"):
        settings = {"model": str(tmp_path / "model"), "data": data, "objective": objective}
        task = build_task(validate(settings | {"batch_size": 2}))
        found[objective] = task.splits["train"].ids
    wanted = tokenizer(text_target=["c", "c a", "b"])["input_ids"]
    assert wanted != tokenizer(["c", "c a", "b"])["input_ids"]
    assert found["seq2seq_lm"]["document"] == wanted
    assert found["seq2seq_lm"]["query"] == tokenizer(["a b", "b", "c c"])["input_ids"]
    assert found["contrastive"]["document"] == tokenizer(["c", "c a", "b"])["input_ids"]
