"""The picture of a run: drawn for every kind of record."""

from __future__ import annotations

import pytest
from PIL import Image

from weighbridge.trainers.plots import plot_run, smooth

UPDATES = [{"step": step, "loss": 2 / step} for step in range(1, 20)]
VALIDATIONS = [{"step": step, "validation": {"loss": 1.0, "mrr": 0.5}} for step in (0, 10, 19)]
RUNS = {
    "both": UPDATES + VALIDATIONS,
    "nothing": [],
    "not finite": [
        {"step": 1, "loss": None},
        {"step": 1, "validation": {"loss": None, "mrr": None}},
    ],
}


@pytest.mark.parametrize("metric", ["mrr", "loss"])
@pytest.mark.parametrize("rows", RUNS.values(), ids=RUNS)
def test_a_run_is_drawn(rows, metric, tmp_path):
    plot_run(rows, metric, tmp_path / "loss.png", best=10)
    with Image.open(tmp_path / "loss.png") as picture:
        width, height = picture.size
    assert width > height > 400


def test_the_mean_follows_a_step_without_a_bias_at_the_start():
    assert smooth([1.0] * 5) == pytest.approx([1.0] * 5)
    rising = smooth([0.0] * 5 + [1.0] * 50)
    assert rising == sorted(rising)
    assert rising[-1] == pytest.approx(1.0, abs=0.01)
