"""A model that asks its mask something in Python trains where it decides as recorded, and is refused elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from weighbridge.errors import UnsupportedError
from weighbridge.trainers.live import live
from weighbridge.trainers.runs.loop import make_step, train
from weighbridge.trainers.tasks import build_task

OTHERWISE = "decides by the values of a mask.*decides otherwise.*--backend torch"


class Hiding(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 1)

    def forward(self, points, mask):
        if (mask == 0).any():
            points = points.masked_fill(mask == 0, 0)
        return self.layer(points)[:, 0]


class Distance(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, points, mask, wanted):
        return (self.model(points, mask) - wanted).abs().mean()


def splits(hidden):
    """Return data of 20 rows, of which those from HIDDEN on hide something."""
    points = np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32)
    mask = np.ones((20, 4), np.int64)
    mask[hidden:, 3] = 0
    rows = {"points": points, "mask": mask, "wanted": points.sum(1)}
    return {"train": rows, "validation": {name: it[:4] for name, it in rows.items()}}


SETTINGS = {"batch_size": 4, "steps": 6, "validate_every": 3, "checkpoint_every": 3}


@pytest.fixture
def task():
    """Return a function that makes the task of data that hide from a row on."""

    def make(hidden):
        config, there = live(Hiding(), Distance, splits(hidden), SETTINGS)
        return config, build_task(config, live=there)

    return make


def test_every_way_into_a_step_refuses_a_mask_that_decides_otherwise(task):
    config, made = task(hidden=12)
    step, data = make_step("mlx", made, config), made.splits["train"]
    for kind in (
        step.gradients,
        lambda it: step.loss(it.inputs),
        lambda it: step.advance([it], 0.1)(),
    ):
        kind(data.batch(range(4)))
        with pytest.raises(UnsupportedError, match=OTHERWISE):
            kind(data.batch(range(10, 14)))
    assert np.isfinite(step.advance([data.batch(range(4))], 0.1)().loss)  # nothing has become NaN


def test_a_value_that_is_not_finite_for_another_reason_is_no_decision(task):
    config, made = task(hidden=12)
    step, batch = make_step("mlx", made, config), made.splits["train"].batch(range(4))
    batch.inputs["points"][0] = np.nan
    assert not step.advance([batch], 0.1)().finite


def test_a_run_says_so_before_it_begins_and_goes_where_all_decide_alike(task, tmp_path):
    config, made = task(hidden=12)
    with pytest.raises(UnsupportedError, match=OTHERWISE):
        train(config, tmp_path / "run", task=made)
    assert not (tmp_path / "run").exists()
    config, made = task(hidden=20)
    assert train(config, tmp_path / "run", task=made).skipped == 0
