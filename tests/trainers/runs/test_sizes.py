"""Batches whose size follows the memory in use: the same examples in the same order, repeatable, resumable."""

from __future__ import annotations

import json

import numpy as np
import pytest

from weighbridge.errors import MismatchError, TooLittleMemoryError
from weighbridge.tests.trainers.runs.test_loop import Killed, kill_after, records, same_run
from weighbridge.trainers.runs import run as runs
from weighbridge.trainers.runs.events import Notice, Started
from weighbridge.trainers.runs.loop import train
from weighbridge.trainers.steps.torch import TorchStep

DYNAMIC = {"min": 4, "max": 16, "every": 2}


@pytest.fixture
def used(monkeypatch):
    """Return a list: what the next measurements of memory find in use; the last one goes on."""
    figures = [0.1]
    monkeypatch.setattr(
        runs, "memory_used", lambda _: figures.pop(0) if len(figures) > 1 else figures[0]
    )
    return figures


def sizes(out):
    return [row["batch_size"] for row in records(out) if "loss" in row]


def go(config, task, out, **options):
    return train(config, out, backend="torch", task=task(config), **options)


def test_the_size_doubles_while_there_is_room_and_halves_where_there_is_little(
    used, series_config, series_task, tmp_path
):
    used[:] = [0.2, 0.6, 0.9, 0.1, 0.1]
    config = series_config(dynamic_batch=DYNAMIC, steps=12)
    go(config, series_task, tmp_path / "run")
    assert sizes(tmp_path / "run") == [4, 4, 8, 8, 8, 8, 4, 4, 8, 8, 16, 16]


def test_every_example_is_seen_once_an_epoch_whatever_the_size(
    used, series_config, series_task, tmp_path
):
    used[:] = [0.2, 0.9, 0.1, 0.9]
    config = series_config(
        dynamic_batch=DYNAMIC | {"every": 1}, epochs=1, steps=None, prefetch={"workers": 0}
    )
    task = series_task(config)
    train_set, seen = task.splits["train"], []
    draw = train_set.batch

    def noted(rows):
        seen.append(list(rows))
        return draw(rows)

    def begun(event):
        if isinstance(event, Started):
            train_set.batch = noted

    train(config, tmp_path / "run", backend="torch", task=task, progress=begun)
    order = [row for at in range(50 // 16) for row in task.order(config)[at]]
    assert [row for rows in seen for row in rows] == order


@pytest.mark.parametrize("killed", [1, 3, 5, 7])
def test_a_killed_run_takes_the_decisions_that_were_taken(
    killed, used, series_config, series_task, tmp_path
):
    config = series_config(dynamic_batch=DYNAMIC, steps=8, checkpoint_every=3)
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    go(config, series_task, straight)
    with pytest.raises(Killed):
        go(config, series_task, broken, progress=kill_after(killed))
    kept = broken / "batch_sizes.jsonl"
    decided = kept.read_text() if kept.exists() else ""
    used[:] = [0.1] * (4 - decided.count("\n")) + [0.99]  # what was decided is not measured again
    go(config, series_task, broken, resume=True)
    same_run(straight, broken)
    assert kept.read_text().startswith(decided)


def test_a_killed_run_goes_on_with_batches_by_tokens(series_config, series_task, tmp_path):
    rows = []

    def uneven(config):
        task = series_task(config)
        train_set = task.splits["train"]
        train_set.length = lambda row: 1 + row % 9
        draw = train_set.batch
        train_set.batch = lambda drawn: rows.append(len(drawn)) or draw(drawn)
        return task

    config = series_config(batch_tokens=20, steps=8, checkpoint_every=3)
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    go(config, uneven, straight)
    with pytest.raises(Killed):
        go(config, uneven, broken, progress=kill_after(5))
    go(config, uneven, broken, resume=True)
    same_run(straight, broken)
    assert len(set(rows)) > 2


class Small(TorchStep):
    """A step that has memory for eight examples at once."""

    def advance(self, batches, learning_rate):
        if max(batch.rows for batch in batches) > 8:
            raise MemoryError
        return super().advance(batches, learning_rate)


@pytest.fixture
def small(used, monkeypatch):
    monkeypatch.setattr(
        "weighbridge.trainers.steps.torch.TorchStep",
        Small,
    )


def test_where_memory_runs_out_the_run_goes_back_and_on_with_half(
    small, series_config, series_task, tmp_path
):
    config = series_config(dynamic_batch=DYNAMIC, steps=12, checkpoint_every=3)
    told = []
    go(config, series_task, tmp_path / "run", progress=told.append)
    assert sizes(tmp_path / "run") == [4, 4] + [8] * 10
    [notice] = [event.text for event in told if isinstance(event, Notice)]
    assert notice == "memory ran out: going on from step 3 with at most 8 examples at once"
    straight = tmp_path / "straight"
    go(config, series_task, straight)
    same_run(straight, tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"batch_size": 16}, "batch_size=8"),
        ({"dynamic_batch": {"min": 16, "max": 32}}, "dynamic_batch.min=8"),
    ],
)
def test_where_nothing_can_be_halved_the_run_says_so(
    changes, advice, small, series_config, series_task, tmp_path
):
    with pytest.raises(TooLittleMemoryError, match=f"batches of 16 examples.*--set {advice}"):
        go(series_config(**changes), series_task, tmp_path / "run")


def test_bounds_that_doubling_does_not_reach_are_refused(series_config):
    with pytest.raises(MismatchError, match=r"dynamic_batch: .*max 20 is not min 8 doubled"):
        series_config(dynamic_batch={"min": 8, "max": 20})


def test_decisions_are_read_as_records(used, series_config, series_task, tmp_path):
    go(series_config(dynamic_batch=DYNAMIC), series_task, tmp_path / "run")
    rows = [
        json.loads(line)
        for line in (tmp_path / "run" / "batch_sizes.jsonl").read_text().splitlines()
    ]
    assert [row["step"] for row in rows] == [2, 4, 6]
    assert np.all([row["memory_used"] == 0.1 for row in rows])
