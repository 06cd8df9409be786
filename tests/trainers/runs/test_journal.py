"""The record: whole lines, exact numbers, cut back where a run goes on."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from weighbridge.trainers.runs.journal import Journal, read_records


def test_records_after_the_checkpoint_and_half_lines_are_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    journal = Journal(path, until=-1)
    for step in range(5):
        journal.append({"step": step})
    with path.open("a") as file:
        file.write('{"step": 5, "lo')
    assert [row["step"] for row in read_records(path)] == [0, 1, 2, 3, 4]
    assert [row["step"] for row in Journal(path, until=2).records] == [0, 1, 2]
    assert [row["step"] for row in read_records(path)] == [0, 1, 2]
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.jsonl"]


@given(st.floats(), st.floats())
def test_numbers_come_back_exactly_and_others_as_null(tmp_path_factory, loss, figure):
    path = tmp_path_factory.mktemp("journal") / "metrics.jsonl"
    Journal(path, until=-1).append({"step": 1, "loss": loss, "validation": {"mrr": figure}})
    [row] = read_records(path)
    for written, read in ((loss, row["loss"]), (figure, row["validation"]["mrr"])):
        assert read == written if math.isfinite(written) else read is None
