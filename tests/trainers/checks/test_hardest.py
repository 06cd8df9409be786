"""The hardest batches: the longest examples, and the largest values."""

from __future__ import annotations

import numpy as np
import pytest

from weighbridge.trainers.checks.hardest import hardest_batches
from weighbridge.trainers.data.series import Series
from weighbridge.trainers.preflight import PreflightError
from weighbridge.trainers.runs.loop import train


def test_the_longest_texts_are_looked_at(pairs_task, pairs_config):
    train_set = pairs_task().splits["train"]
    [(what, batch)] = hardest_batches(train_set, 4)
    assert what == "longest examples"
    lengths = sorted(map(train_set.length, range(len(train_set))))
    assert batch.tokens == sum(lengths[-4:])
    [(_, batch)] = hardest_batches(train_set, 4, lambda rows: [rows[2:], rows[:2]])
    assert batch.tokens == sum(lengths[-2:])


def test_the_largest_values_are_looked_at():
    series = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    series[7, 1], series[31, 0] = -90, np.nan
    [(what, batch)] = hardest_batches(Series({"series": series}), 2)
    assert what == "largest values"
    assert np.array_equal(batch.inputs["series"], series[[31, 7]], equal_nan=True)


@pytest.mark.parametrize("backend", ["mlx", "torch"])
def test_a_batch_that_would_stop_the_run_later_stops_it_before_it_writes(
    backend, series_config, series_task, tmp_path
):
    config = series_config()
    task = series_task(config)
    last = task.order(config)[5][0]
    task.splits["train"].arrays["target"][last] = 1e30  # whose square no float32 holds
    with pytest.raises(PreflightError, match=r"largest values: the loss is not finite") as caught:
        train(config, tmp_path / "run", backend=backend, task=task)
    assert "mse_loss (regression.py:" in str(caught.value)
    assert "too large for its dtype" in str(caught.value)
    assert not list(tmp_path.iterdir())
