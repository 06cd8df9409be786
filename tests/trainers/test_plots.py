"""The picture of a run: drawn for every kind of record."""

from __future__ import annotations

import pytest
from PIL import Image

from weighbridge.trainers import plots
from weighbridge.trainers.plots import plot_comparison, plot_run, smooth

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


def test_speed_and_memory_are_drawn_with_the_size_of_batches_where_it_varies(tmp_path):
    from weighbridge.trainers.plots import plot_speed

    def record(step, size):
        figures = {"samples_per_second": 90.0 + step, "peak_memory_mb": 5.0, "process_mb": 9.0}
        return {"step": step, "batch_size": size, **figures}

    plot_speed([{"step": 0, "validation": {}}], tmp_path / "none.png")
    plot_speed([record(step, 32) for step in range(9)], tmp_path / "fixed.png")
    plot_speed([record(step, 32 << (step > 4)) for step in range(9)], tmp_path / "varies.png")
    assert not (tmp_path / "none.png").exists()
    sizes = [(tmp_path / f"{name}.png").stat().st_size for name in ("fixed", "varies")]
    assert min(sizes) > 10_000


def test_a_short_run_is_drawn_without_fractions_of_steps(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(plots, "save", lambda figure, _: drawn.append(figure))
    plot_comparison({"mlx": [3.0, 2.0, 1.0], "torch": [3.0, 2.0, 1.0]}, tmp_path / "x.png")
    ticks = [axis.get_xticks() for axis in drawn[0].axes]
    assert all(tick == int(tick) for each in ticks for tick in each)
