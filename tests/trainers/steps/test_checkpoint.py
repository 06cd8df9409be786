"""Values computed again for the gradient: the same numbers, less memory, and what is left as it is."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import torch
from torch import nn

from weighbridge.errors import MismatchError
from weighbridge.trainers.runs.loop import make_step
from weighbridge.trainers.tasks import build_task

BACKENDS = ["mlx", "torch"]


class Block(nn.Module):
    """A wide block with a norm and, perhaps, dropout."""

    def __init__(self, width, dropout, norm):
        super().__init__()
        self.norm = norm(16)
        self.up, self.down = nn.Linear(16, width), nn.Linear(width, 16)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.drop(self.down(torch.tanh(torch.sin(self.up(self.norm(x))))))


class Deep(nn.Module):
    """Blocks one after another."""

    def __init__(self, width=24, dropout=0.0, norm=nn.LayerNorm, count=4):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, dropout, norm) for _ in range(count))
        self.head = nn.Linear(16, 3)

    def forward(self, series):
        x = series.flatten(1)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def deep(**settings):
    torch.manual_seed(2)
    return Deep(**settings)


CASES = [("mlx", nn.LayerNorm, 0.0), ("torch", nn.LayerNorm, 0.0), ("torch", nn.BatchNorm1d, 0.5)]


@pytest.mark.parametrize(("backend", "norm", "dropout"), CASES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_updates_are_the_same_bit_for_bit(backend, norm, dropout, dtype, series_config):
    ends = []
    for again in ([], ["blocks.*"]):
        config = series_config(checkpoint=again, dtype=dtype)
        task = build_task(config, deep(norm=norm, dropout=dropout))
        step = make_step(backend, task, config)
        for number in range(3):
            step.advance([task.splits["train"].batch(task.order(config)[number])], 0.01)()
        ends.append(step.state())
    assert all(np.array_equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_mlx_keeps_less(series_config):
    peaks = []
    for again in ([], ["blocks.*"]):
        config = series_config(checkpoint=again, batch_size=48)
        task = build_task(config, deep(width=5_000, count=16))
        step = make_step("mlx", task, config)
        batch = task.splits["train"].batch(task.order(config)[0])
        inputs = {name: mx.array(value) for name, value in batch.inputs.items()}
        mx.eval(step.model.state)
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        mx.eval(step._differentiate(inputs))
        peaks.append(mx.get_peak_memory() - before)
    assert peaks[1] < 0.6 * peaks[0]


@pytest.mark.parametrize("settings", [{"dropout": 0.5}, {"norm": nn.BatchNorm1d}])
def test_what_can_be_computed_once_only_stays_in_mlx_and_is_named(settings, series_config):
    config = series_config(checkpoint=["blocks.0", "head"])
    step = make_step("mlx", build_task(config, deep(**settings)), config)
    assert any("model.blocks.0" in notice for notice in step.notices)
    assert not any("model.head" in notice for notice in step.notices)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_module_that_is_not_there_is_refused(backend, series_config):
    config = series_config(checkpoint=["block"])
    with pytest.raises(MismatchError, match="block: did you mean"):
        make_step(backend, build_task(config, deep()), config)


@pytest.mark.heavy
def test_adapters_in_a_segment_have_their_gradients(pairs_config, pairs_task):
    found = []
    for again in ([], ["encoder.layer.?"]):
        config = pairs_config(checkpoint=again)
        task = pairs_task(config)
        step = make_step("mlx", task, config)
        step.assign({name: value + 0.1 for name, value in step.trainable().items()})
        found.append(step.gradients(task.splits["train"].batch(range(4))))
    assert found[0][0] == found[1][0]
    assert all(np.array_equal(value, found[1][1][name]) for name, value in found[0][1].items())
