"""The watchdog: a run that hangs leaves a dump of its stacks and a checkpoint, and the process ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
import yaml

from weighbridge.trainers.runs.events import TIMES
from weighbridge.trainers.watching.watchdog import Watchdog

HANGING = """
import os
import threading
from pathlib import Path

import numpy as np
import torch
from torch import nn


def hang(place):
    '''Wait for ever where the run is told to hang at PLACE, after five updates.'''
    if os.environ.get("HANG") != place:
        return
    record = Path(os.environ["RUN"], "metrics.jsonl")
    if record.exists() and record.read_text().count('"loss": ') - record.read_text().count("valid") >= 5:
        threading.Event().wait()


def build():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, 1)
    )


class Predicted(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, points):
        return self.model(points)


class Squares(nn.Module):
    evaluated = Predicted
    evaluated_dynamic = {"points": {0: "batch"}}

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, points, wanted):
        loss = ((self.model(points)[:, 0] - wanted) ** 2).mean()
        if not torch.compiler.is_exporting():
            hang("forward")
        return loss

    @staticmethod
    def weight(batch):
        hang("update")
        return float(len(batch["wanted"]))


class Points:
    def __init__(self, split):
        generator = np.random.default_rng(len(split))
        self.points = generator.standard_normal((48, 4)).astype(np.float32)
        self.wanted = self.points.sum(1)

    def __len__(self):
        return 48

    def batch(self, rows):
        hang("data")
        return {name: getattr(self, name)[rows] for name in ("points", "wanted")}


def far(predict, dataset):
    hang("evaluation")
    batch = dataset.batch(range(len(dataset)))
    return np.abs(predict({"points": batch["points"]})[:, 0] - batch["wanted"]).mean()


if os.environ.get("HANG") == "checkpoint":
    from weighbridge.trainers.runs.checkpoint import Checkpoints

    Checkpoints.write = lambda *_: hang("checkpoint")
"""
RECIPE = {
    "model": "hanging:build",
    "trust_code": "hanging",
    "data": "hanging:Points",
    "objective": {"name": "hanging:Squares"},
    "metric": "hanging:far",
    "higher_is_better": False,
    "steps": 8,
    "batch_size": 8,
    "validate_every": 3,
    "checkpoint_every": 4,
    "watchdog": 3,
    "ema": 0.9,
    "prefetch": {"workers": 0},
}


def run(folder, out, *arguments, hang=""):
    """Return the ended process of ``weighbridge train`` in FOLDER that hangs at HANG."""
    environment = os.environ | {"HANG": hang, "RUN": str(out), "PYTHONPATH": f"{folder}:{PATH}"}
    command = [sys.executable, "-m", "weighbridge", "train", *map(str, arguments)]
    return subprocess.run(
        command, check=False, env=environment, cwd=folder, capture_output=True, text=True
    )


PATH = os.environ.get("PYTHONPATH", "")


def left(out):
    """Return everything that a run leaves and that must not depend on what befell it."""
    rows = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    record = [{key: it for key, it in row.items() if key not in TIMES} for row in rows]
    return record, (out / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def hanging(tmp_path_factory):
    """Return a folder with a recipe that can hang, and its undisturbed runs in both backends."""
    folder = tmp_path_factory.mktemp("hanging")
    (folder / "hanging.py").write_text(textwrap.dedent(HANGING))
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    for backend in ("mlx", "torch"):
        done = run(folder, backend, backend, "--recipe", "recipe.yaml", "--backend", backend)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("backend", "place", "step"),
    [
        ("mlx", "data", 5),
        ("mlx", "update", 5),
        ("mlx", "evaluation", 6),
        ("mlx", "checkpoint", 8),
        ("torch", "forward", 5),
        ("torch", "evaluation", 6),
    ],
)
def test_a_run_that_hangs_leaves_a_checkpoint_from_which_it_ends_as_if_it_had_not(
    hanging, tmp_path, backend, place, step
):
    out = tmp_path / "run"
    start = [out, "--recipe", "recipe.yaml", "--backend", backend]
    done = run(hanging, out, *start, hang=place)
    assert done.returncode == 3, done.stderr
    assert "in hang" in (out / "stack.txt").read_text()
    assert "nothing has moved for 3 s" in done.stderr
    assert f"step-{step:08} is written; go on with: " in done.stderr
    assert f"train {out} --resume" in done.stderr
    done = run(hanging, out, out, "--resume")
    assert done.returncode == 0, done.stderr
    assert left(out) == left(hanging / backend)


class Hangs:
    """Something that waits until the watchdog has left."""

    def __init__(self):
        self.codes, self._left = [], threading.Event()

    def leave(self, code):
        self.codes.append(code)
        self._left.set()

    def hang(self):
        assert self._left.wait(60)


def test_what_hangs_leaves_its_stacks(tmp_path, capfd):
    here = Hangs()
    with Watchdog(tmp_path, 0.02, lambda: None, here.leave) as watchdog:
        watchdog.beat()
        here.hang()
    assert here.codes == [3]
    assert "in hang" in (tmp_path / "stack.txt").read_text()
    said = capfd.readouterr().err
    assert "The last checkpoint stays; go on with: " in said
    assert f"train {tmp_path} --resume" in said


def test_a_checkpoint_that_cannot_be_written_is_told_and_the_process_ends(tmp_path, capfd):
    def full():
        raise OSError("No space left on device")

    here = Hangs()
    with Watchdog(tmp_path, 0.02, full, here.leave):
        here.hang()
    assert here.codes == [3]
    assert "No checkpoint could be written (No space left on device)" in capfd.readouterr().err


def test_signs_of_life_keep_it_quiet(tmp_path):
    codes = []
    with Watchdog(tmp_path, 20.0, lambda: None, codes.append) as watchdog:
        for _ in range(20):
            watchdog.beat()
    assert codes == []
    assert not list(tmp_path.iterdir())


def test_none_watches_nothing(tmp_path):
    with Watchdog(tmp_path, None, lambda: None) as watchdog:
        watchdog.beat()


@pytest.mark.parametrize("large", [False, True])
def test_a_state_that_is_held_is_not_changed_by_the_next_update(
    large, series_config, series_task, monkeypatch
):
    from weighbridge.trainers.runs.loop import make_step

    config = series_config(ema=0.9, compile=True)
    task = series_task(config)
    monkeypatch.setattr("weighbridge.trainers.steps.mlx.fits_twice", lambda _: not large)
    step = make_step("mlx", task, config)
    batch = task.splits["train"].batch(range(8))
    for _ in range(3):
        step.advance([batch], 0.1)()
        held, before = step.held(), step.state()
        step.advance([batch], 0.1)()
        found = held.arrays()
        if large:
            assert found is None
        else:
            assert found.keys() == before.keys()
            assert all(np.array_equal(found[name], before[name]) for name in before)


def test_a_state_of_torch_is_held_until_the_optimizer_writes_over_it(series_config, series_task):
    from weighbridge.trainers.runs.loop import make_step

    config = series_config(ema=0.9)
    task = series_task(config)
    step = make_step("torch", task, config)
    batch = task.splits["train"].batch(range(8))
    step.advance([batch], 0.1)()
    held, before = step.held(), step.state()
    step.loss(batch.inputs)
    assert all(np.array_equal(it, before[name]) for name, it in held.arrays().items())
    step.advance([batch], 0.1)()
    assert held.arrays() is None
