"""The profiler on updates that leak and on updates that do not."""

from __future__ import annotations

import importlib
import itertools
import json
import mmap
import sys
from unittest.mock import patch

import mlx.core as mx
import pytest
from PIL import Image

from weighbridge.trainers.memory import MemoryProfiler, Sample, read_memory, report_of
from weighbridge.trainers.memory.report import PLOT, REPORT
from weighbridge.trainers.runs.loop import make_step

MIB = 2**20


def test_process_system_and_mlx_are_read():
    held = mx.zeros((MIB,), mx.uint8)
    mx.eval(held)
    sizes = read_memory()
    assert {"process", "system", "mlx_active", "mlx_peak", "mlx_cache"} <= sizes.keys()
    assert sizes["mlx_active"] >= MIB
    assert 0 < sizes["process"] < sizes["system"]


def profiled(update, updates: int):
    """Profile UPDATES calls of UPDATE."""
    with MemoryProfiler(interval=0.01) as profiler:
        for number in range(updates):
            update(number)
            profiler.step()
    return profiler.report()


def found(report, name: str) -> bool:
    """Say whether REPORT calls NAME a leak of a MiB per update, and says so in its advice."""
    slope = report.trends[name].slope
    told = any(line.startswith(f"{name} grows by 1.0") for line in report.advice)
    return report.verdict == "leak" and slope == pytest.approx(MIB, rel=0.2) and told


def test_200_updates_are_steady_and_arrays_that_are_kept_are_found(series_task, series_config):
    config = series_config()
    task = series_task(config)
    step, order, kept = make_step("mlx", task, config), task.order(config), []

    def update(number):
        step.advance([task.splits["train"].batch(order[number])], 1e-3)()

    def leaking(number):
        update(number)
        kept.append(mx.full((MIB,), number, mx.uint8))
        mx.eval(kept)

    assert profiled(update, 200).verdict == "steady"
    assert found(profiled(leaking, 60), "mlx_active")


def test_memory_that_only_the_system_counts_is_found():
    kept = []

    def leaking(number):
        kept.append(mmap.mmap(-1, MIB))
        kept[-1].write(bytes([1]) * MIB)

    assert found(profiled(leaking, 60), "process")


def test_the_thread_samples_between_updates_and_ends_with_the_block():
    with MemoryProfiler(interval=0.001) as profiler:
        while len(profiler.samples) < 5:
            pass
    taken = len(profiler.samples)
    seconds = [sample.seconds for sample in profiler.samples]
    assert seconds == sorted(seconds)
    assert all(sample.step is None for sample in profiler.samples)
    assert len(profiler.samples) == taken


def test_a_long_run_keeps_fewer_readings_of_all_of_it(monkeypatch):
    monkeypatch.setattr("weighbridge.trainers.memory.profiler.MOST", 50)
    with MemoryProfiler(interval=60) as profiler:
        for _ in range(1000):
            profiler.step()
    steps = [sample.step for sample in profiler.samples if sample.step]
    assert len(steps) <= 50
    assert len({after - before for before, after in itertools.pairwise(steps)}) == 1
    assert steps[0] < 100
    assert steps[-1] > 900


def test_an_error_in_the_block_still_leaves_a_report():
    profiler = MemoryProfiler()
    with pytest.raises(ValueError, match="stop"), profiler:
        raise ValueError("stop")
    assert profiler.report().verdict == "too short"


def samples(before: float, peak: float, **more: float) -> tuple[Sample, ...]:
    """Return readings of ten updates, in bytes: BEFORE at their ends, PEAK within them."""
    rows = [(None, peak), *((step, before) for step in range(1, 11))]
    extra = {name: int(size) for name, size in more.items()}
    return tuple(
        Sample(0.1 * n, step, {"process": int(size)} | extra) for n, (step, size) in enumerate(rows)
    )


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        (
            {"before": 1e9, "peak": 9e9},
            "--set batch_size=8 --set accumulation=2 needs about 5000 MB",
        ),
        ({"before": 1e9, "peak": 2e9}, "batch_size=64 would need about 5000 MB"),
        (
            {"before": 1e9, "peak": 2e9, "mlx_active": 1e8, "mlx_peak": 7e8},
            "batch_size=128 would need about 6200 MB",
        ),
        ({"before": 3e9, "peak": 7e9}, None),
        (
            {"before": 3e9, "peak": 6e9, "mlx_active": 1e9, "mlx_peak": 4e9, "mlx_cache": 3e9},
            "MLX keeps up to 3000 MB of freed memory",
        ),
    ],
)
def test_advice_has_numbers_that_follow_from_the_readings(monkeypatch, sizes, expected):
    monkeypatch.setenv("WEIGHBRIDGE_MEMORY", "10")
    advice = report_of(samples(**sizes), batch_size=16).advice
    assert (len(advice) == 1 and expected in advice[0]) if expected else advice == ()


def test_a_report_is_written_in_megabytes_with_a_picture(tmp_path, monkeypatch):
    monkeypatch.setenv("WEIGHBRIDGE_MEMORY", "10")
    report_of(samples(1e9, 9e9, mlx_active=5e8)).write(tmp_path)
    document = json.loads((tmp_path / REPORT).read_text())
    assert document["peak_mb"] == {"process": 9000, "mlx_active": 500}
    assert document["limit_mb"] == 10_000
    assert document["samples"][0] == {
        "seconds": 0,
        "step": None,
        "process": 9000,
        "mlx_active": 500,
    }
    with Image.open(tmp_path / PLOT) as picture:
        assert min(picture.size) > 400


@pytest.mark.parametrize("framework", ["mlx.core", "torch"])
def test_a_framework_that_is_being_imported_is_not_read(framework, tmp_path, monkeypatch):
    path = tmp_path / f"{framework.replace('.', '/')}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"from {read_memory.__module__} import read_memory\nfound = read_memory()\n")
    monkeypatch.syspath_prepend(tmp_path)
    with patch.dict(sys.modules):
        for name in ("mlx", "mlx.core", "torch"):
            sys.modules.pop(name, None)
        assert importlib.import_module(framework).found.keys() == {"process", "system"}
