"""Data that cannot be learned from: one clear line through the verb, and no run left behind."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from click.testing import CliRunner

from tests.fuzz import goods
from weighbridge.cli import main

TEXT = {"text": "the time of the year"}
LABELLED = [{"text": "one", "label": 0}, {"text": "two", "label": 1}]


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    """Run in a folder of the test's own, with a forecaster and its recipe."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEIGHBRIDGE_CACHE", str(tmp_path / "cache"))
    for name in ("port.py", "series", "recipe.yaml"):
        goods.GOODS[name](tmp_path / name)


def lines(rows, path="rows.jsonl"):
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))


def parquet(rows, path="rows.parquet"):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def train(*settings, code=3):
    sets = [part for setting in settings for part in ("--set", setting)]
    result = CliRunner().invoke(main, ["train", "run", "--backend", "torch", *sets])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.output


def refused(*settings):
    """Return what the verb says of SETTINGS, which leave no run."""
    output = train(*settings)
    assert output.count("Error: ") == 1
    assert "Traceback" not in output
    assert not Path("run").exists()
    return output


def wrong_labels():
    lines(LABELLED)
    lines([{"text": "three", "label": 7}], "others.jsonl")


def holes():
    np.savez("holes.npz", series=np.full((8, 3, 2), np.nan), target=np.zeros((8, 2)))


TEXTS = ("data.kind=text", "data.train=rows.jsonl", "objective=causal_lm")
LABELS = ("data.kind=labelled", "objective=classification")
SERIES = (
    "data.kind=series",
    "data.train=holes.npz",
    "data.validation=holes.npz",
    "objective=regression",
)
CASES = {  # what is wrong: what makes it, the settings, what is said
    "empty file": (lambda: lines([]), TEXTS, "no example for this split"),
    "empty texts": (lambda: lines([{"text": " "}] * 4), TEXTS, "nothing to learn in it"),
    "no such file": (list, TEXTS, "rows.jsonl: there is no such file; --set data.train=FILE"),
    "no such file to test on": (
        lambda: lines([TEXT] * 4),
        (*TEXTS, "data.test=none.jsonl"),
        "none.jsonl: there is no such file; --set data.test=FILE",
    ),
    "no such file of any kind": (list, ("data=none.jsonl",), "data: there is no file none.jsonl"),
    "a folder of nothing": (
        lambda: Path("rows.jsonl").mkdir(),
        (*LABELS, "data.train=rows.jsonl"),
        "rows.jsonl: Is a directory; name a file, not a folder",
    ),
    "options of a directory": (
        lambda: lines([TEXT] * 4),
        (*TEXTS, "model_options={width: 3}"),
        "model_options: only a model that is MODULE:FUNCTION takes them, and",
    ),
    "no such model": (list, (*TEXTS, "model=none"), "none: no such file or directory, and not"),
    "no such model, and what to do": (list, (*TEXTS, "model=none"), "--set model=DIRECTORY"),
    "no such teacher": (
        lambda: lines([{"text": "ab", "label": n % 2} for n in range(9)]),
        (*LABELS[:1], "data.train=rows.jsonl", "objective=distillation", "objective.teacher=none"),
        "none: no such file or directory, and not MODULE:FUNCTION either; --set objective.teacher=DIRECTORY",
    ),
    "not JSON": (lambda: Path("rows.jsonl").write_text("{\n"), TEXTS, "line 1: not JSON"),
    "a model without a head": (
        lambda: lines([TEXT] * 40),
        TEXTS,
        "BertModel has no head of words",
    ),
    "not UTF-8": (
        lambda: Path("rows.jsonl").write_bytes(b'{"text": "a"}\n{"text": "caf\xe9"}\n'),
        TEXTS,
        "rows.jsonl: line 2: invalid continuation byte; save the file as UTF-8",
    ),
    "a wrong key": (lambda: lines([{"txt": "a"}]), TEXTS, "line 1: no text text; is it txt?"),
    "data of another kind": (
        lambda: lines([{"prompt": "a", "completion": "b"}] * 4),
        ("data=rows.jsonl", "objective=seq2seq_lm"),
        "1 problem\n  it learns from rows with document, query: --set data.kind=pairs; data.columns",
    ),
    "too long": (
        lambda: lines([TEXT] * 4),
        (*TEXTS, "data.length=[4]", "data.too_long=refuse"),
        "longer than 4 tokens",
    ),
    "longer than the model": (
        lambda: lines([TEXT] * 4),
        (*TEXTS, "data.length=[400]"),
        "data.length: 400 tokens, and the model has 160 positions",
    ),
    "a label out of range": (
        wrong_labels,
        (*LABELS, "data.train=rows.jsonl", "data.validation=others.jsonl"),
        "line 1: label 7 is none of 0 to 1",
    ),
    "a name among numbers": (
        lambda: lines([TEXT | {"label": n % 2} for n in range(9)] + [TEXT | {"label": "one"}]),
        (*LABELS, "data.train=rows.jsonl"),
        "labels that are names and labels that are numbers: 1 problem\n  line 10: 'one'",
    ),
    "a table without rows": (
        lambda: Path("rows.csv").write_text("text,label\n"),
        (*LABELS, "data.train=rows.csv"),
        "rows.csv: cannot read the table (no row below the names of the columns)",
    ),
    "a wrong column": (
        lambda: parquet([{"txt": "a", "label": 1}] * 9),
        (*LABELS, "data.train=rows.parquet"),
        "no column text among txt, label; is it txt? --set data.columns.text=txt",
    ),
    "columns of no kind": (
        lambda: parquet([{"a": 1}]),
        ("data=rows.parquet",),
        "no kind of data has the columns a",
    ),
    "NaN": (holes, SERIES, "series: 48 of 48 numbers are not finite"),
    "nothing but NaN": (holes, (*SERIES, "data.nan=drop"), "every example has a number"),
    "a mistyped key": (list, (*TEXTS, "data.lenght=[4]"), "did you mean data.length"),
    "a broken table": (
        lambda: Path("rows.parquet").write_bytes(b"PAR1"),
        (*LABELS, "data.train=rows.parquet"),
        "rows.parquet: cannot read the table",
    ),
    "a broken archive": (
        lambda: Path("holes.npz").write_bytes(b"PK\x03\x04"),
        SERIES,
        "holes.npz",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_data_that_cannot_be_learned_from_is_refused_before_a_run(tiny_bert_dir, case):
    make, settings, message = CASES[case]
    make()
    assert message in refused(f"model={tiny_bert_dir}", *settings)


def test_what_was_done_about_the_data_is_in_the_report(tiny_bert_dir):
    rows = [{"series": row.tolist(), "target": row[0].tolist()} for row in np.ones((12, 3, 2))]
    rows[3]["target"][0] = float("nan")
    parquet(rows)
    data = {"kind": "series", "train": "rows.parquet", "validation": 0.25, "nan": "drop"}
    Path("recipe.yaml").write_text(
        goods.RECIPE.replace(goods.RECIPE.splitlines()[1], f"data: {data}")
    )
    arguments = ["train", "run", "--backend", "torch", "--config", "recipe.yaml"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    report = json.loads(Path("run/result.json").read_text())["data"]
    assert report["train"]["examples"] + report["validation"]["examples"] == 11
    assert report["train"]["dropped"] + report["validation"]["dropped"] == 1


PAIRS = (
    "data.kind=pairs",
    "data.train=rows.jsonl",
    "objective=contrastive",
    "steps=1",
    "freeze=[pooler]",
)


def test_a_mark_of_the_byte_order_and_separators_in_texts_are_no_ends_of_lines(tiny_bert_dir):
    rows = [{"query": f"the\u2028time {it}", "document": f"year\x85{it}"} for it in range(20)]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\r\n" for row in rows)
    Path("rows.jsonl").write_text(text, encoding="utf-8-sig", newline="")
    train(f"model={tiny_bert_dir}", *PAIRS, "batch_size=2", code=0)


def test_fewer_examples_than_are_recorded_train(tiny_bert_dir):
    rows = [{"query": f"the time {it}", "document": f"a year {it}"} for it in "abcd"]
    lines(rows[:2])
    lines(rows[2:], "others.jsonl")
    settings = (f"model={tiny_bert_dir}", *PAIRS, "data.validation=others.jsonl")
    train(*settings, "batch_size=2", code=0)
