"""The same rows in every format: the same data, and one clear line for what cannot be read."""

from __future__ import annotations

import json

import datasets
import numpy as np
import pyarrow
import pytest

from weighbridge.errors import BadInputError, MismatchError
from weighbridge.trainers.config import validate
from weighbridge.trainers.data.context import Context
from weighbridge.trainers.data.reading import read_splits
from weighbridge.trainers.data.rows.tables import read_table

ROWS = [
    {"text": 'a, "b"\nc', "label": 1},
    {"text": "NA", "label": 0},
    {"text": "12", "label": 2},
    {"text": "ü", "label": 0},
]


@pytest.fixture(autouse=True)
def _apart(monkeypatch, tmp_path):
    """Keep what the library caches in a folder of the test."""
    monkeypatch.setenv("WEIGHBRIDGE_CACHE", str(tmp_path / "cache"))


def arrow_file(rows, path):
    table = pyarrow.Table.from_pylist(rows)
    with pyarrow.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)


def arrow_stream(rows, path):
    table = pyarrow.Table.from_pylist(rows)
    with pyarrow.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)


def csv(rows, path, separator=","):
    datasets.Dataset.from_list(rows).to_pandas().to_csv(path, sep=separator, index=False)


WRITERS = {
    "rows.jsonl": lambda rows, path: path.write_text(
        "".join(json.dumps(row) + "\n" for row in rows)
    ),
    "rows.json": lambda rows, path: path.write_text(json.dumps(rows, indent=1)),
    "rows.csv": csv,
    "rows.tsv": lambda rows, path: csv(rows, path, "\t"),
    "semicolons.csv": lambda rows, path: csv(rows, path, ";"),
    "rows.parquet": lambda rows, path: pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist(rows), str(path)
    ),
    "rows.arrow": arrow_stream,
    "rows.feather": arrow_file,
    "saved": lambda rows, path: datasets.Dataset.from_list(rows).save_to_disk(path),
}
LISTS = set(WRITERS) - {
    "rows.csv",
    "rows.tsv",
    "semicolons.csv",
}  # formats whose cells may be lists


@pytest.fixture
def write_as(tmp_path):
    """Return a function that writes rows in a format."""

    def writing(rows, name):

        datasets.disable_progress_bars()
        WRITERS[name](rows, tmp_path / name)
        return tmp_path / name

    return writing


def split(path, folder, **section):
    data = {"train": str(path), "validation": str(path)} | section
    config = validate({"model": "m", "data": data, "objective": "regression"})
    return read_splits(config.data, Context(folder))["train"]


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_data(write_as, tiny_bert_dir, name):
    read = split(write_as(ROWS, name), tiny_bert_dir, kind="labelled")
    same = split(write_as(ROWS, "rows.jsonl"), tiny_bert_dir, kind="labelled")
    assert read.digest == same.digest
    assert read.labels.tolist() == [1, 0, 2, 0]


@pytest.mark.parametrize("name", sorted(LISTS))
def test_conversations_and_lists_come_from_every_format_that_has_them(
    write_as, chat_tokenizer, name
):
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    read = split(write_as([{"messages": messages}], name), chat_tokenizer, kind="text")
    same = split(write_as([{"messages": messages}], "rows.jsonl"), chat_tokenizer, kind="text")
    assert read.digest == same.digest


@pytest.mark.parametrize("name", WRITERS)
def test_columns_of_numbers_are_series(write_as, name):
    rows = [{"x": float(number), "y": number % 3} for number in range(5)]
    read = split(write_as(rows, name), None, kind="series", columns={"series": "x", "labels": "y"})
    assert read.arrays["series"].tolist() == [0, 1, 2, 3, 4]
    assert (read.arrays["labels"].dtype, read.arrays["labels"].tolist()) == (
        np.int64,
        [0, 1, 2, 0, 1],
    )


@pytest.mark.parametrize("name", sorted(LISTS))
def test_rows_of_lists_are_series(write_as, name):
    rows = [{"x": [[1.0, 2.0], [3.0, 4.0]]}, {"x": [[5.0, 6.0], [7.0, 8.0]]}]
    read = split(write_as(rows, name), None, kind="series", columns={"x": "x"})
    assert read.arrays["x"].tolist() == [row["x"] for row in rows]


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet", "rows.jsonl"])
def test_missing_numbers_of_a_series_are_told(write_as, name):
    path = write_as([{"x": 1.0, "y": 1.0}, {"x": None, "y": 2.0}], name)
    with pytest.raises(MismatchError, match="x: 1 of 2 numbers are not finite"):
        split(path, None, kind="series", columns={"x": "x"})


def test_scores_of_a_csv_table_are_numbers(write_as, tiny_bert_dir):
    rows = [{"query": "1", "document": "b", "score": 0.5}]
    read = split(write_as(rows, "rows.csv"), tiny_bert_dir, kind="pairs")
    assert read.pairs[0] == ("1", "b", (), 0.5)


def test_the_splits_of_a_saved_dictionary_are_read(tmp_path, tiny_bert_dir):
    datasets.disable_progress_bars()
    names = ("train", "validation")
    parts = {name: datasets.Dataset.from_list([{"text": name, "label": 0}]) for name in names}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    config = validate(
        {"model": "m", "data": str(tmp_path / "saved"), "objective": "classification"}
    )
    found = read_splits(config.data, Context(tiny_bert_dir))
    assert config.data.kind == "labelled"
    assert {name: len(it) for name, it in found.items()} == {"train": 1, "validation": 1}


GUESSED = {
    "preferences": {"prompt": "a", "chosen": "b", "rejected": "c"},
    "pairs": {"query": "a", "document": "b"},
    "labelled": {"text": "a", "label": 1},
    "text": {"prompt": "a", "completion": "b"},
}


@pytest.mark.parametrize("kind", GUESSED)
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_a_file_alone_is_data_of_the_kind_that_its_columns_make(write_as, kind, name):
    path = write_as([GUESSED[kind]], name)
    config = validate({"model": "m", "data": str(path), "objective": "regression"})
    assert (config.data.kind, config.data.train, config.data.validation) == (kind, path, 0.1)


def test_a_plain_file_alone_is_packed_text(tmp_path):
    (tmp_path / "a.txt").write_text("words")
    config = validate({"model": "m", "data": str(tmp_path / "a.txt"), "objective": "regression"})
    assert (config.data.kind, config.data.pack) == ("text", True)


def test_columns_of_no_kind_are_named(write_as):
    path = str(write_as([{"a": 1, "b": 2}], "rows.jsonl"))
    with pytest.raises(BadInputError, match="no kind of data has the columns a, b"):
        validate({"model": "m", "data": path, "objective": "regression"})


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet", "rows.arrow", "saved"])
def test_a_missing_column_is_one_line_with_the_nearest(write_as, tiny_bert_dir, name):
    path = write_as([{"txt": "a", "label": 1}] * 30, name)
    with pytest.raises(BadInputError) as caught:
        split(path, tiny_bert_dir, kind="labelled")
    said = "no column text among txt, label; is it txt? --set data.columns.text=txt"
    assert str(caught.value) == f"{path}: {said}"


def test_a_missing_column_that_none_is_like_is_one_line_with_the_setting(write_as, tiny_bert_dir):
    path = write_as([{"body": "a", "label": 1}] * 30, "rows.parquet")
    with pytest.raises(BadInputError, match=r"among body, label; --set data\.columns\.text=COLUMN"):
        split(path, tiny_bert_dir, kind="labelled")


BROKEN = {
    "rows.csv": b'text,label\n"a',
    "rows.tsv": b"",
    "rows.parquet": b"PAR1 and no more",
    "rows.arrow": b"\xff\xff\xff\xff\x10\x00\x00\x00abc",
    "rows.feather": b"ARROW1\x00\x00abc",
    "rows.json": b'[{"text": "a"},',
    "rows.jsonl": b"\xff\xfe",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_by_name_in_one_line(tmp_path, tiny_bert_dir, capfd, name):
    (tmp_path / name).write_bytes(BROKEN[name])
    with pytest.raises(BadInputError, match=name) as caught:
        split(tmp_path / name, tiny_bert_dir, kind="labelled")
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_a_folder_that_lost_its_files_is_refused(write_as, tiny_bert_dir):
    path = write_as(ROWS, "saved")
    next(path.glob("*.arrow")).unlink()
    with pytest.raises(BadInputError, match="saved: cannot read the table"):
        split(path, tiny_bert_dir, kind="labelled")


def test_what_is_wrong_with_all_rows_is_said_once(write_as, tiny_bert_dir):
    path = write_as([{"txt": "a", "label": 0}] * 30, "rows.jsonl")
    with pytest.raises(MismatchError) as caught:
        split(path, tiny_bert_dir, kind="labelled")
    assert caught.value.problems == ("all 30 rows: no text text; is it txt?",)


def test_a_bad_row_of_a_table_is_named_by_its_number(write_as, tiny_bert_dir):
    path = write_as([{"text": "a", "label": 0}, {"text": None, "label": 1}], "rows.parquet")
    with pytest.raises(MismatchError) as caught:
        split(path, tiny_bert_dir, kind="labelled")
    assert caught.value.problems == ("row 2: no text text",)


def test_an_entry_of_a_list_that_is_no_object_is_named(tmp_path):
    (tmp_path / "rows.json").write_text('[{"a": 1}, 2]')
    places = [f"{place}: {row}" for place, row in read_table(tmp_path / "rows.json", "rows").rows]
    assert places[1] == "entry 2: no JSON object"
