"""Memory figures: the same thing in both backends, and a plausible amount of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest
import torch

from weighbridge.trainers.config import validate
from weighbridge.trainers.runs.loop import make_step
from weighbridge.trainers.steps.memory import Memory
from weighbridge.trainers.tasks import build_task

MB = 2**20


GROWTH = """
import numpy as np
from weighbridge.trainers.steps.memory import Memory
memory = Memory()
memory.begin()
block = np.ones(48 << 20, np.uint8)
print(memory.peak())
del block
print(memory.peak())
"""


def in_a_process_of_its_own(code):
    """Return the numbers that CODE prints: what hundreds of tests left behind may go while one counts."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [int(line) for line in done.stdout.splitlines() if line.isdigit()]


def test_growth_counts_and_stays_after_it_is_freed():
    held, after = in_a_process_of_its_own(GROWTH)
    assert 40 * MB < held < 120 * MB
    assert after >= held


def test_a_device_of_its_own_is_added():
    assert Memory(lambda: 7 * MB).peak() >= 7 * MB


class Wide(torch.nn.Module):
    """48 MB of parameters."""

    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(16, 3)
        self.wide = torch.nn.Linear(3, 3 * 2**20, bias=False)

    def forward(self, series):
        return self.head(series.flatten(1)) + self.wide.weight.mean()


def measured(backend, config):
    """Return the peak of two updates of the CONFIG in a file."""
    config = validate(json.loads(Path(config).read_text()))
    task = build_task(config, Wide())
    step = make_step(backend, task, config)
    for number in range(2):
        step.advance([task.splits["train"].batch(task.order(config)[number])], 0.01)()
    return step.peak_memory()


@pytest.mark.parametrize("backend", ["mlx", "torch"])
def test_a_step_takes_parameters_gradients_and_moments_in_both(backend, series_config, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(series_config().model_dump_json())
    code = "from weighbridge.tests.trainers.steps.test_memory import measured"
    words = f"{code}; print(measured({backend!r}, {str(config)!r}))"
    *_, found = in_a_process_of_its_own(words)
    size = 3 * 3 * 2**20 * 4
    assert 3 * size < found < 30 * size  # parameter, gradient, two moments; copies


def test_what_earlier_work_held_is_given_back_before_memory_is_counted():
    """MLX frees in a thread of its own, some time after Python let go."""
    held = mx.zeros((64, 2**20), mx.uint8)
    mx.eval(held)
    most = mx.get_active_memory()
    del held
    Memory()
    assert mx.get_active_memory() <= most - 64 * MB
