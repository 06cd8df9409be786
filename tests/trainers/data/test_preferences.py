"""Answers that are preferred, and those that are not."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import AutoTokenizer

from weighbridge.errors import BadInputError, MismatchError
from weighbridge.trainers.config import validate
from weighbridge.trainers.data.context import Context
from weighbridge.trainers.data.reading import leaks, read_splits

ROW = {"prompt": "Rain?", "chosen": " No.", "rejected": " Yes, lots of it."}
ASK = [{"role": "user", "content": "Rain?"}]
ANSWERS = {side: [{"role": "assistant", "content": ROW[side]}] for side in ("chosen", "rejected")}
FORMS = {
    "texts": ROW,
    "messages": {"prompt": ASK, **ANSWERS},
    "a conversation and texts": ROW | {"prompt": ASK},
}


@pytest.fixture
def read(write_rows, chat_tokenizer):
    """Return a function that reads rows as the splits of a section."""

    def reading(rows, folder=chat_tokenizer, **section):
        path = str(write_rows(rows))
        data = {"kind": "preferences", "train": path, "validation": path} | section
        config = validate({"model": "m", "data": data, "objective": "contrastive"})
        return read_splits(config.data, Context(folder))

    return reading


def texts(batch, side, folder):
    """Return the first text of SIDE and what of it counts, as the tokenizer reads them."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids, mask, labels = (batch.inputs[f"{side}_{name}"][0] for name in ("ids", "mask", "labels"))
    return tokenizer.decode(ids[mask == 1]), tokenizer.decode(labels[labels != -100])


@pytest.mark.parametrize("form", FORMS)
def test_both_answers_stand_behind_the_prompt_which_does_not_count(read, chat_tokenizer, form):
    batch = read([FORMS[form]])["train"].batch([0])
    for side in ("chosen", "rejected"):
        whole, counted = texts(batch, side, chat_tokenizer)
        assert whole == f"<user>Rain?<end><assistant>{ROW[side]}<end>"
        assert counted == f"{ROW[side]}<end>"
    assert {array.dtype for array in batch.inputs.values()} == {np.dtype(np.int64)}
    assert len({array.shape for array in batch.inputs.values()}) == 1
    ids = [batch.inputs[f"{side}_ids"] for side in ("chosen", "rejected")]
    assert sum(read([FORMS[form]])["train"].width(0)) == sum(array.size for array in ids)


def test_without_a_template_texts_are_put_together(read, plain_tokenizer):
    batch = read([ROW], plain_tokenizer)["train"].batch([0])
    assert texts(batch, "chosen", plain_tokenizer) == ("Rain? No.<end>", " No.<end>")


def test_examples_without_an_answer_are_left_out_and_counted(read):
    train = read([ROW, ROW | {"chosen": " "}, ROW | {"prompt": "x" * 99}], length=[60])["train"]
    assert len(train) == 1
    assert (train.report["empty"], train.report["nothing_to_learn"], train.report["cut"]) == (
        1,
        1,
        2,
    )
    with pytest.raises(BadInputError, match="nothing to learn"):
        read([ROW | {"chosen": " "}])


def test_examples_whose_answers_are_the_same_are_left_out_counted_and_named(read):
    same = ROW | {"rejected": ROW["chosen"]}
    train = read([ROW, same, ROW, same])["train"]
    assert (len(train), train.report["examples"], train.report["same_answers"]) == (2, 2, 2)
    assert train.notes == ("line 2, line 4: chosen and rejected are the same; left out",)
    assert read([ROW])["train"].notes == ()
    with pytest.raises(
        BadInputError, match=r"chosen and rejected are the same in all 25 rows"
    ) as caught:
        read([same] * 25)
    assert "line" not in str(caught.value)
    many = read([ROW, *[same] * 30])["train"].notes[0]
    assert "line 21 and 10 more: chosen" in many


def test_answers_that_differ_beyond_the_length_are_the_same(read):
    far = {"prompt": "x", "chosen": "y" * 60 + "a", "rejected": "y" * 60 + "b"}
    train = read([ROW, far], length=[60])["train"]
    assert (len(train), train.report["same_answers"]) == (1, 1)
    with pytest.raises(BadInputError, match=r"in all 1 rows, within 60 tokens.*data\.length"):
        read([far], length=[60])


def test_preferences_seen_in_training_are_counted(read):
    assert leaks(read([ROW])) == {"validation": 1}


BAD_ROWS = {
    "no text chosen; is it choosen?": {"prompt": "a", "choosen": "b", "rejected": "c"},
    "no text prompt": {"chosen": "b", "rejected": "c"},
    "no text rejected": ROW | {"rejected": 1},
    "message 1 is no object with a role": {"prompt": [1], **ANSWERS},
}


@pytest.mark.parametrize("problem", BAD_ROWS)
def test_a_row_that_is_no_preference_is_named(read, problem):
    with pytest.raises(MismatchError) as caught:
        read([ROW, BAD_ROWS[problem]])
    assert caught.value.problems == (f"line 2: {problem}",)


def test_longer_ones_may_be_refused(read):
    with pytest.raises(MismatchError, match="longer than 20 tokens"):
        read([ROW], length=[20], too_long="refuse")
