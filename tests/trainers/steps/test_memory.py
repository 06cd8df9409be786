"""Memory figures: the same thing in both backends, and a plausible amount of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from weighbridge.trainers.runs.loop import make_step
from weighbridge.trainers.steps.memory import Memory
from weighbridge.trainers.tasks import build_task

MB = 2**20


def test_growth_counts_and_stays_after_it_is_freed():
    memory = Memory()
    memory.begin()
    block = np.ones(48 * MB, np.uint8)
    held = memory.peak()
    del block
    assert 40 * MB < held < 120 * MB
    assert memory.peak() >= held


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


@pytest.mark.parametrize("backend", ["mlx", "torch"])
def test_a_step_takes_parameters_gradients_and_moments_in_both(backend, series_config):
    config = series_config()
    task = build_task(config, Wide())
    step = make_step(backend, task, config)
    for number in range(2):
        step.advance([task.splits["train"].batch(task.order(config)[number])], 0.01)()
    size = 3 * 3 * 2**20 * 4
    assert 3 * size < step.peak_memory() < 30 * size  # parameter, gradient, two moments; copies
