"""A row of a benchmark: what is measured of a short training and of inference."""

from __future__ import annotations

import itertools
import os

import pytest

from weighbridge.trainers.bench import measure as module
from weighbridge.trainers.bench import table
from weighbridge.trainers.bench.entries import BASELINE, absent, ladder, matrix
from weighbridge.trainers.bench.plot import plot_rows
from weighbridge.trainers.bench.table import _compare_memory, cells, lines, measured
from weighbridge.trainers.child import THREADS
from weighbridge.trainers.runs.loop import make_step


@pytest.mark.parametrize("backend", ["mlx", "torch"])
def test_a_row_has_speed_memory_loss_and_phases(backend, series_config, series_task, monkeypatch):
    monkeypatch.setattr(module, "build_task", series_task)
    found = module.measure(series_config(), backend, 3)
    assert found["phases"].keys() == {"forward", "backward", "update"}
    assert min(found["samples_per_second"], found["inference_samples_per_second"]) > 0
    assert found["batch_size"] == 8
    assert found["device"] == "cpu"


def test_the_final_loss_is_that_of_training(series_config, series_task, monkeypatch):
    monkeypatch.setattr(module, "build_task", series_task)
    config = series_config()
    task = series_task(config)
    step, order = make_step("torch", task, config), task.order(config)
    for number in range(module.WARM + 3):
        batch = task.splits["train"].batch(order[number])
        measures = step.advance([batch], config.optimizer.learning_rate)()
    for lazy in (True, False):
        found = module.measure(config, "torch", 3, lazy=lazy)
        assert found["final_loss"] == pytest.approx(measures.loss, abs=1e-6)


def test_queries_and_documents_are_phases_of_their_own(pairs_config, pairs_task, monkeypatch):
    monkeypatch.setattr(module, "build_task", pairs_task)
    found = module.measure(pairs_config(), "torch", 2)
    assert list(found["phases"]) == [
        *("query forward", "document forward", "scoring and loss", "backward", "update")
    ]


def test_batches_grow_with_the_memory_that_is_left(series_config, series_task, monkeypatch):
    monkeypatch.setattr(module, "build_task", series_task)
    monkeypatch.setattr(module, "memory_used", lambda _: 0.1)
    config = series_config(dynamic_batch={"min": 4, "max": 16, "every": 1})
    assert module.measure(config, "torch", 2)["batch_size"] == 16


def test_the_table_says_what_was_asked_for_and_what_is_not_here(series_config, tmp_path):
    entries = matrix(series_config(), ["mlx", "torch"], [8, 16], [], [True, False])
    assert [entry.name for entry in entries if entry.backend == "torch"] == [
        *(f"torch {BASELINE}", "torch float32 batch 8", "torch float32 batch 16")
    ]
    assert sum(entry.backend == "mlx" for entry in entries) == 5
    rows = measured(series_config(), absent(["torch"], {"torch": "cpu"}), 1, "")
    assert [*lines(rows)] == [
        f"torch on {device}: not run, no such device here" for device in ("mps", "cuda")
    ]
    assert [*cells(rows)] == []
    plot_rows(rows, tmp_path / "plot.png")
    assert not (tmp_path / "plot.png").exists()


def test_the_ladder_adds_one_thing_a_rung(series_config):
    rungs = ladder(series_config())
    assert (
        rungs[5].settings["accumulation"] * rungs[5].settings["batch_size"]
        == (rungs[4].settings["dynamic_batch"]["max"])
    )
    for below, above in itertools.pairwise(rungs[1:5]):
        assert (
            len({key for key in above.settings if above.settings[key] != below.settings.get(key)})
            == 1
        )
    assert "for adapters" in rungs[-1].why_not
    [row] = measured(series_config(), rungs[-1:], 1, "")
    assert "every weight is trained" in row["not_run"]


def test_memory_is_compared_with_the_first_row_of_as_many_examples():
    rows = [
        {"backend": "mlx", "examples": examples, "peak_memory_mb": memory}
        for examples, memory in ((2, 10.0), (2, 12.0), (8, 40.0), (8, 20.0))
    ]
    _compare_memory([*rows, {"backend": "mlx", "not_run": "no such device"}])
    assert [row["memory_ratio"] for row in rows] == [1.0, 1.2, 1.0, 0.5]


def test_a_picture_of_the_rows_is_drawn(tmp_path):
    rows = [
        {"row": f"row {n}", "samples_per_second": 90.0 * n, "peak_memory_mb": 5.0 * n}
        for n in (1, 2, 3)
    ]
    plot_rows(rows, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000


@pytest.mark.parametrize("chosen", [None, "3"])
def test_rows_multiply_with_one_thread_unless_the_environment_says_otherwise(
    chosen, series_config, monkeypatch
):
    for name in THREADS:
        monkeypatch.delenv(name, raising=False)
    if chosen:
        monkeypatch.setenv("OMP_NUM_THREADS", chosen)
    seen = lambda *_given: {name: os.environ.get(name) for name in THREADS}  # noqa: E731
    monkeypatch.setattr(table, "in_child", seen)
    [row, *_] = measured(series_config(), matrix(series_config(), ["mlx"], [], [], []), 1, "")
    assert {row[name] for name in THREADS} == {chosen or "1"}
    assert os.environ.get("MKL_NUM_THREADS") is None
