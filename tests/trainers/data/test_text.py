"""Texts for language models: what is learned, what is only read, what is cut, split or packed."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.tuner.datasets import create_dataset
from transformers import AutoTokenizer

from weighbridge.errors import BadInputError, MismatchError
from weighbridge.trainers.config import dump_config, load_config, validate
from weighbridge.trainers.data.context import Context
from weighbridge.trainers.data.reading import read_splits
from weighbridge.trainers.data.text import Text
from weighbridge.trainers.data.tokens import buckets
from weighbridge.trainers.data.tokens.forms import Coded
from weighbridge.trainers.data.tokens.lengths import pieces

TOOLS = [{"type": "function", "function": {"name": "temperature", "parameters": {}}}]
ASK = {"role": "user", "content": "How warm?"}
ANSWER = {"role": "assistant", "content": "Five degrees."}
TEXT = {"text": "It rains, and then it stops."}
PAIR = {"prompt": "How warm?", "completion": " Five degrees."}
CHAT = {"messages": [ASK, ANSWER, ASK, ANSWER], "tools": TOOLS}
FORMS = {"text": TEXT, "prompt": PAIR, "messages": CHAT}
CASES = [(form, mask) for form in FORMS for mask in (False, True) if (form, mask) != ("text", True)]


@pytest.fixture
def read(write_rows, chat_tokenizer):
    """Return a function that reads rows, or a path, as the training split of a section."""

    def reading(rows, context=None, **section):
        path = write_rows(rows) if isinstance(rows, list) else rows
        data = {"kind": "text", "train": str(path), "validation": str(path)} | section
        config = validate({"model": "m", "data": data, "objective": "regression"})
        return read_splits(config.data, context or Context(chat_tokenizer))["train"]

    return reading


def words_of(dataset, folder):
    """Return the texts of a dataset, and of its labels that count, as the tokenizer reads them."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    batch = dataset.batch(range(len(dataset))).inputs
    kept = [ids[mask == 1] for ids, mask in zip(batch["ids"], batch["mask"], strict=True)]
    counted = [labels[labels != -100] for labels in batch["labels"]]
    return tuple([tokenizer.decode(ids) for ids in them] for them in (kept, counted))


@pytest.mark.parametrize(("form", "mask"), CASES)
def test_tokens_and_prompts_are_those_of_mlx_lm(read, chat_tokenizer, form, mask):
    row = FORMS[form]
    own = create_dataset(
        [row], AutoTokenizer.from_pretrained(chat_tokenizer), type("", (), {"mask_prompt": mask})
    )
    ids, offset = own.process(row)
    batch = read([row], mask_prompt=mask, length=[400]).batch([0]).inputs
    assert batch["ids"][0, : len(ids)].tolist() == list(ids)
    assert batch["mask"].sum() == len(ids)
    assert batch["labels"][0].tolist() == [-100] * offset + list(ids[offset:]) + [-100] * (
        400 - len(ids)
    )


def test_a_tokenizer_without_template_puts_prompt_and_completion_together(read, plain_tokenizer):
    data = read([PAIR], Context(plain_tokenizer), mask_prompt=True)
    whole, counted = words_of(data, plain_tokenizer)
    assert (whole, counted) == (["How warm? Five degrees.<end>"], [" Five degrees.<end>"])


def test_columns_of_other_names_are_read(read, chat_tokenizer):
    data = read([{"content": "ab"}], columns={"text": "content"})
    assert words_of(data, chat_tokenizer)[0] == ["ab<end>"]


def test_inputs_are_int64_padded_to_the_smallest_length(read):
    data = read([{"text": "ab"}, {"text": "a" * 12}], length=[16, 4])
    short, both = data.batch([0]), data.batch([0, 1])
    assert {array.dtype for array in both.inputs.values()} == {np.dtype(np.int64)}
    assert short.inputs["ids"].shape == (1, 4)
    assert both.inputs["ids"].shape == (2, 16)
    assert (both.rows, both.tokens) == (2, 3 + 13)


def test_lengths_are_chosen_from_the_data_where_none_are_given(read):
    data = read([{"text": "a" * count} for count in range(3, 60)])
    widths = [data.batch([row]).inputs["ids"].shape[1] for row in range(len(data))]
    lengths = [data.length(row) for row in range(len(data))]
    assert 3 < len(set(widths)) <= buckets.MOST
    assert sum(widths) <= buckets.SPARE * sum(lengths)
    assert widths == [data.width(row) for row in range(len(data))]


def test_packed_texts_lie_behind_one_another_in_blocks(read, chat_tokenizer):
    data = read([{"text": "abc"}, {"text": "de"}, {"text": "fghijk"}], pack=True, length=[5])
    assert words_of(data, chat_tokenizer)[0] == ["abc<end>d", "e<end>fgh", "ijk<end>"]
    assert data.report["tokens"] == 4 + 3 + 7


def test_packing_keeps_prompts_masked(read, chat_tokenizer):
    data = read([PAIR, PAIR], pack=True, length=[20], mask_prompt=True)
    whole, counted = words_of(data, chat_tokenizer)
    one = "<user>How warm?<end><assistant> Five degrees.<end>"
    assert "".join(whole) == one * 2
    assert "".join(counted) == " Five degrees.<end>" * 2


@given(st.integers(1, 40), st.integers(1, 9))
def test_pieces_joined_are_the_text(count, length):
    ids = np.arange(count, dtype=np.int32)
    parts = list(pieces(Coded(ids, -ids), length))
    assert np.concatenate([part.ids for part in parts]).tolist() == ids.tolist()
    assert {len(part.ids) for part in parts[:-1]} <= {length}
    assert all((part.labels == -part.ids).all() for part in parts)


def test_a_longer_text_is_cut_split_or_refused(read, chat_tokenizer):
    rows = [{"text": "abcdefgh"}, {"text": "ij"}]
    cut, split = (read(rows, length=[4], too_long=way) for way in ("cut", "split"))
    assert words_of(cut, chat_tokenizer)[0] == ["abcd", "ij<end>"]
    assert words_of(split, chat_tokenizer)[0] == ["abcd", "efgh", "ij<end>"]
    assert (cut.report["cut"], split.report["split"]) == (1, 1)
    with pytest.raises(MismatchError, match="longer than 4 tokens") as caught:
        read(rows, length=[4], too_long="refuse")
    assert caught.value.problems == ("line 1: 9 tokens",)


def test_a_text_without_anything_to_learn_is_left_out_and_counted(read):
    data = read([PAIR | {"prompt": "x" * 90}, PAIR], length=[60], mask_prompt=True)
    assert (len(data), data.report["nothing_to_learn"]) == (1, 1)


def test_hidden_tokens_are_found_again_and_the_rest_is_left(read, tiny_bert_dir):
    rows = [{"text": "the time of the year and the way of all people"}] * 200
    plain, hidden = (read(rows, Context(tiny_bert_dir), **more) for more in ({}, {"hide": 0.15}))
    before, after = (it.batch(range(200)).inputs for it in (plain, hidden))
    found = after["labels"] != -100
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert_dir)
    special = np.isin(before["ids"], tokenizer.all_special_ids) | (before["mask"] == 0)
    assert (after["labels"][found] == before["ids"][found]).all()
    assert (after["ids"][~found] == before["ids"][~found]).all()
    assert not (found & special).any()
    assert found.any(axis=1).all()
    assert 0.13 < found.sum() / (~special).sum() < 0.2  # at least one of eleven
    masked = after["ids"][found] == tokenizer.mask_token_id
    assert 0.7 < masked.mean() < 0.9
    again = read(rows, Context(tiny_bert_dir), hide=0.15)
    assert (again.batch(range(200)).inputs["ids"] == after["ids"]).all()
    assert again.digest == hidden.digest != plain.digest


def test_a_share_of_the_rows_is_held_out_by_the_seed(write_rows, chat_tokenizer):
    path = write_rows([{"text": f"text {number}"} for number in range(40)])
    data = {"kind": "text", "train": str(path), "validation": 0.25}

    def splits(**more):
        config = validate({"model": "m", "data": data | more, "objective": "regression"})
        return {
            name: set(words_of(it, chat_tokenizer)[0])
            for name, it in read_splits(config.data, Context(chat_tokenizer)).items()
        }

    one, other = splits(), splits(seed=1)
    assert {name: len(texts) for name, texts in one.items()} == {"train": 30, "validation": 10}
    assert not one["train"] & one["validation"]
    assert splits() == one != other


def test_the_folder_of_mlx_lm_holds_all_splits(write_rows, tmp_path, chat_tokenizer):
    for name in ("train", "valid", "test"):
        write_rows([{"text": name}], f"data/{name}.jsonl")
    data = {"kind": "text", "train": str(tmp_path / "data")}
    config = validate({"model": "m", "data": data, "objective": "regression"})
    found = read_splits(config.data, Context(chat_tokenizer))
    assert {name: words_of(it, chat_tokenizer)[0] for name, it in found.items()} == {
        "train": ["train<end>"],
        "validation": ["valid<end>"],
        "test": ["test<end>"],
    }
    (tmp_path / "config.yaml").write_text(dump_config(config))
    assert load_config(tmp_path / "config.yaml") == config
    off = validate({"model": "m", "data": data | {"test": None}, "objective": "regression"})
    assert read_splits(off.data, Context(chat_tokenizer)).keys() == {"train", "validation"}


def test_plain_files_are_one_text_each(read, tmp_path, chat_tokenizer):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "b.txt").write_text("two\n\nparagraphs")
    (folder / "a.txt").write_text("one")
    packed = read(folder, pack=True, length=[400])
    split = read(folder / "b.txt", too_long="split", length=[8])
    assert words_of(packed, chat_tokenizer)[0] == ["one<end>two\n\nparagraphs<end>"]
    assert words_of(split, chat_tokenizer)[0] == ["two\n\npar", "agraphs<end>"]
    with pytest.raises(BadInputError, match="one text, of which no more than a begin"):
        read(folder)


BAD_ROWS = {
    "no text; is it txt?": {"txt": "a"},
    "no text completion": {"prompt": "a"},
    "messages are no list": {"messages": []},
    "message 2 is no object with a role": {"messages": [ASK, {"content": "a"}]},
    "no robots": {"messages": [{"role": "robot", "content": "a"}]},
}


@pytest.mark.parametrize("said", BAD_ROWS)
def test_a_row_that_is_no_text_is_named(read, said):
    with pytest.raises(MismatchError) as caught:
        read([TEXT, BAD_ROWS[said]])
    (problem,) = caught.value.problems
    assert problem.startswith("line 2: ")
    assert said.removeprefix("no text; ") in problem


REFUSED = {
    "nothing to learn": ([{"text": " "}], {}),
    "no example": ([], {}),
    "without a prompt": ([TEXT], {"mask_prompt": True}),
    "data.length: 200 tokens": ([TEXT], {"length": [200]}),
    "too few to divide": ([TEXT], {"validation": 0.5}),
}


@pytest.mark.parametrize("said", REFUSED)
def test_data_that_cannot_be_learned_is_refused(read, chat_tokenizer, said):
    rows, section = REFUSED[said]
    with pytest.raises((BadInputError, MismatchError), match=said):
        read(rows, Context(chat_tokenizer, positions=100), **section)


def test_ids_that_the_model_has_no_row_for_are_refused(read, chat_tokenizer):
    with pytest.raises(MismatchError, match=re.escape("and the model has 0 to 99")):
        read([TEXT], Context(chat_tokenizer, vocabulary=100))


@pytest.mark.parametrize("row", [CHAT, PAIR], ids=["messages", "asked for"])
def test_a_missing_chat_template_is_said(read, plain_tokenizer, row):
    with pytest.raises(BadInputError, match="no chat template"):
        read([row], Context(plain_tokenizer), chat_template=True)


def test_the_digest_follows_ids_and_labels():
    ids, other = np.arange(4, dtype=np.int32), np.array([-100, 1, 2, 3], np.int32)
    digests = {
        Text([Coded(*it)], [4], {}).digest for it in ((ids, ids), (ids, other), (other, ids))
    }
    assert len(digests) == 3
