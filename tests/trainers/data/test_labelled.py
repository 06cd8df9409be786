"""Texts with labels: what labels there are, and which are told as unknown."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.errors import BadInputError, MismatchError
from weighbridge.trainers.config import validate
from weighbridge.trainers.data.context import Context
from weighbridge.trainers.data.reading import leaks, read_splits
from weighbridge.trainers.data.tokens.classes import Classes


@pytest.fixture
def read(write_rows, tiny_bert_dir):
    """Return a function that reads the labels of both splits, each by its own text."""

    def reading(train, validation=None, **section):
        texts = [{"text": f"text {number}", "label": it} for number, it in enumerate(train)]
        others = [{"text": f"other {it}", "label": it} for it in validation or train[:1]]
        data = {"kind": "labelled", "train": str(write_rows(texts, "train.jsonl"))}
        data |= {"validation": str(write_rows(others, "validation.jsonl"))} | section
        config = validate({"model": "m", "data": data, "objective": "regression"})
        return read_splits(config.data, Context(tiny_bert_dir))

    return reading


def labels(split):
    return split.batch(range(len(split))).inputs["labels"]


FORMS = {  # labels -> what the objective gets
    "numbers": ([2, 0, 1], [2, 0, 1]),
    "names": (["b", "a", "b"], [1, 0, 1]),
    "truth": ([True, False], [1, 0]),
    "whole floats": ([1.0, 0.0], [1, 0]),
    "lists of names": ([["b"], [], ["a", "b"]], [[0, 1], [0, 0], [1, 1]]),
    "lists of numbers": ([[2], [0, 1]], [[0, 0, 1], [1, 1, 0]]),
    "vectors": ([[0, 1, 1], [1, 0, 0]], [[0, 1, 1], [1, 0, 0]]),
}


@pytest.mark.parametrize("form", FORMS)
def test_labels_are_told_as_numbers(read, form):
    given, wanted = FORMS[form]
    splits = read(given)
    assert labels(splits["train"]).tolist() == wanted
    assert labels(splits["train"]).dtype == (np.int64 if np.ndim(wanted) == 1 else np.float32)
    assert labels(splits["validation"]).tolist() == wanted[:1]


@given(st.lists(st.text(max_size=3), min_size=1, max_size=20))
def test_names_come_back_from_their_numbers(names):
    classes = Classes.found(names, None)
    assert [classes.names[number] for number in classes.encoded(names)] == names


@given(st.lists(st.sets(st.sampled_from("abcd")), min_size=1, max_size=9))
def test_several_names_come_back_from_their_vector(sets):
    given = [tuple(sorted(them)) for them in sets]
    classes = Classes.found(given, None)
    back = [
        {name for name, has in zip(classes.names, row, strict=True) if has}
        for row in classes.encoded(given)
    ]
    assert back == sets


def test_the_order_of_classes_may_be_given(read):
    splits = read(["no", "yes"], classes=["yes", "no", "perhaps"])
    assert labels(splits["train"]).tolist() == [1, 0]
    assert splits["train"].report["classes"] == 3


UNKNOWN = {
    "line 2: label 3 is none of 0 to 1": ([0, 1], [0, 3]),
    "line 1: label -1 is none of 0 to 1": ([0, 1], [-1]),
    "line 1: label 'c' is none of a, b": (["a", "b"], ["c"]),
    "line 1: label 'a' is none of 0 to 1": ([0, 1], ["a"]),
    "line 1: several labels, and training has one": ([0, 1], [[0, 1]]),
    "line 1: label (1, 0) is not 3 times 0 or 1": ([[0, 1, 1]], [[1, 0]]),
}


@pytest.mark.parametrize("said", UNKNOWN)
def test_a_label_that_training_does_not_have_is_named_by_its_line(read, said):
    with pytest.raises(MismatchError, match=r"validation\.jsonl has labels") as caught:
        read(*UNKNOWN[said])
    (problem,) = caught.value.problems
    assert problem.startswith(said)


def test_all_unknown_labels_are_told_together_and_some_shown(read):
    with pytest.raises(MismatchError, match="and 30 more"):
        read([0, 1], [7] * 50)


NO_LABELS = {"no label": None, "neither a name nor a whole number": 0.5, "neither a name": [{}]}


@pytest.mark.parametrize("said", NO_LABELS)
def test_what_is_no_label_is_named_by_its_line(read, said):
    with pytest.raises(MismatchError) as caught:
        read([0, NO_LABELS[said]])
    assert caught.value.problems[0].startswith("line 2: ")
    assert said in caught.value.problems[0]


def test_a_negative_label_in_training_is_refused(read):
    with pytest.raises(MismatchError, match=r"label -2 is none of 0 to 1"):
        read([0, -2, 1])


def test_texts_are_those_of_the_tokenizer_and_cut_before_their_last_token(read, tiny_bert_dir):
    from transformers import AutoTokenizer

    split = read([0, 1], length=[4])["train"]
    own = AutoTokenizer.from_pretrained(tiny_bert_dir)("text 0", truncation=True, max_length=4)
    batch = split.batch([0]).inputs
    assert batch["ids"][0].tolist() == own["input_ids"]
    assert split.report["cut"] == 2
    with pytest.raises(MismatchError, match="longer than 4 tokens"):
        read([0, 1], length=[4], too_long="refuse")


def test_texts_seen_in_training_are_counted(write_rows, tiny_bert_dir):
    rows = [{"text": text, "label": 0} for text in ("one", "two")]
    train, validation = write_rows(rows, "t.jsonl"), write_rows(rows[1:], "v.jsonl")
    data = {"kind": "labelled", "train": str(train), "validation": str(validation)}
    config = validate({"model": "m", "data": data, "objective": "regression"})
    assert leaks(read_splits(config.data, Context(tiny_bert_dir))) == {"validation": 1}


def test_the_digest_follows_the_labels(read):
    assert read([0, 1])["train"].digest != read([1, 0])["train"].digest


def test_a_file_without_texts_is_refused(write_rows, tiny_bert_dir):
    path = str(write_rows([{"text": " ", "label": 1}]))
    data = {"kind": "labelled", "train": path, "validation": path}
    config = validate({"model": "m", "data": data, "objective": "regression"})
    with pytest.raises(BadInputError, match="no text in it"):
        read_splits(config.data, Context(tiny_bert_dir))
