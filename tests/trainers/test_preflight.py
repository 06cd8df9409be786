"""Preflight: what it shows and what it refuses."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from weighbridge.trainers.data.batches import Batch
from weighbridge.trainers.preflight import VANISHES, PreflightError, check_gradients
from weighbridge.trainers.runs.loop import _check, make_step, train
from weighbridge.trainers.steps.mlx import MlxStep
from weighbridge.trainers.tasks import Parameter

BATCH = Batch({}, 1, 1)
PARAMETERS = {"model.w": Parameter((2,), True), "frozen": Parameter((2,), False)}
GOOD = {"model.w": np.array([1.0, -2.0])}
FAULTS = {  # gradients of (mlx, torch) -> what is said of it
    "not reached": ({}, GOOD, "model.w: trainable, but the loss does not depend on it in mlx"),
    "zero": (
        {"model.w": np.zeros(2)},
        {"model.w": np.zeros(2)},
        "does not depend on it in mlx and torch; freeze it",
    ),
    "frozen moves": (
        GOOD | {"frozen": np.ones(2)},
        GOOD,
        "frozen: is frozen but has a gradient in mlx",
    ),
    "stranger": (GOOD | {"other": np.ones(2)}, GOOD, "other: is frozen but has a gradient in mlx"),
    "not finite": (
        {"model.w": np.array([1.0, np.nan])},
        GOOD,
        "model.w: its gradient is not finite in mlx",
    ),
    "sign": ({"model.w": np.array([1.0, 2.0])}, GOOD, "model.w: gradients differ by 2.0e+00"),
    "small error": (
        {"model.w": np.array([1.0, -2.001])},
        GOOD,
        "model.w: gradients differ by 5.0e-04",
    ),
}


class Fixed:
    """A step whose gradients are given."""

    def __init__(self, gradients, loss=1.0):
        self._gradients, self._loss = gradients, loss

    def trainable(self):
        return {}

    def assign(self, values):
        pass

    def gradients(self, batch):
        return self._loss, self._gradients


def check(mlx, torch, parameters=PARAMETERS):
    steps = {"mlx": mlx, "torch": torch}
    return check_gradients(steps, parameters, BATCH, seed=0, tolerance=1e-4)


class Cornered:
    """A step of a ReLU: its gradient is 1 where the parameter is above what ROUNDING leaves of zero, else 0."""

    def __init__(self, rounding, fault=0.0):
        self._rounding, self._fault, self.value = rounding, fault, np.array([1.0, 1.0])

    def trainable(self):
        return {"model.w": self.value}

    def assign(self, values):
        self.value = values["model.w"]

    def gradients(self, batch):
        inner = self.value[0] - self.value[1] + self._rounding
        slope = float(inner > 0)
        return 1.0, {"model.w": np.array([slope - 2, -slope - 2 + self._fault])}


def test_a_value_within_rounding_of_a_corner_is_no_fault():
    steps = {"mlx": Cornered(1e-9), "torch": Cornered(-1e-9)}
    checked = check_gradients(steps, PARAMETERS, BATCH, seed=0, tolerance=1e-4)
    assert checked.ok
    assert "within rounding of a corner" in checked.summary()
    assert all((step.value == 1).all() for step in steps.values())


def test_a_fault_is_refused_at_a_corner_too():
    steps = {"mlx": Cornered(1e-9, fault=0.01), "torch": Cornered(-1e-9)}
    assert not check_gradients(steps, PARAMETERS, BATCH, seed=0, tolerance=1e-4).ok


class Exactly(Cornered):
    """A slope that is wrong at the value that the parameter has, and right beside it; no corner is near."""

    def gradients(self, batch):
        loss, found = super().gradients(batch)
        wrong = 0.5 * bool((self.value == 1).all())
        return loss, {"model.w": found["model.w"] + wrong}


def test_a_fault_that_shows_at_exact_values_alone_is_refused():
    checked = check_gradients(
        {"mlx": Exactly(1.0), "torch": Cornered(1.0)}, PARAMETERS, BATCH, seed=0, tolerance=1e-4
    )
    assert not checked.ok
    assert "corner" not in checked.summary()


def test_the_advice_freezes_nothing_that_has_a_gradient():
    names = ("model.base.mask", "model.base.dense.weight", "model.base.pooler.dense.bias")
    parameters = dict.fromkeys(names, Parameter((2,), True))
    found = {"model.base.dense.weight": GOOD["model.w"]}
    first, second = check(Fixed(found), Fixed(found), parameters).problems
    assert "--set freeze=[base.mask])" in first
    assert "--set freeze=[base.pooler])" in second


def test_equal_gradients_pass():
    result = check(Fixed(GOOD), Fixed(GOOD))
    assert result.ok
    assert "1 of 2 parameters train (2 numbers)" in result.summary()
    assert result.table()[1] == [["model.w", "2", "yes", "2.00e+00", "2.00e+00", "0.0e+00", ""]]


@pytest.mark.parametrize(("mlx", "torch", "message"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_refused_and_named(mlx, torch, message):
    result = check(Fixed(mlx), Fixed(torch))
    assert message in "\n".join(result.problems)
    with pytest.raises(PreflightError, match="preflight refuses this run"):
        result.require()


@pytest.mark.parametrize(("mlx", "torch"), [(1.0, 1.1), (np.nan, np.nan), (np.inf, 1.0)])
def test_losses_that_differ_or_are_not_finite_are_refused(mlx, torch):
    result = check(Fixed(GOOD, mlx), Fixed(GOOD, torch))
    assert [text for text in result.problems if text.startswith("loss")]


def test_all_reasons_come_together():
    mlx = Fixed({"model.w": np.array([np.nan, 1.0]), "frozen": np.ones(2)}, loss=9.0)
    assert len(check(mlx, Fixed(GOOD)).problems) == 3


def test_a_gradient_that_cancels_is_named_and_not_refused():
    parameters = PARAMETERS | {"key.bias": Parameter((1,), True)}
    mlx, torch = (GOOD | {"key.bias": np.array([size])} for size in (1e-8, -3e-8))
    result = check(Fixed(mlx), Fixed(torch), parameters)
    assert result.ok
    assert [row.note for row in result.rows if row.name == "key.bias"] == [VANISHES]


def test_adapters_are_probed_and_get_their_values_back(pairs_config, pairs_task):
    config = pairs_config()
    task = pairs_task(config)
    steps = {name: make_step(name, task, config) for name in ("mlx", "torch")}
    before = {name: step.trainable() for name, step in steps.items()}
    batch = task.splits["train"].batch(task.order(config)[0])
    result = check_gradients(steps, task.parameters(), batch, seed=0, tolerance=1e-3)
    assert result.ok, result.summary()
    assert result.probed == 4
    for name, step in steps.items():
        after = step.trainable()
        assert all(np.array_equal(after[key], value) for key, value in before[name].items())
    trained = [row for row in result.rows if row.trainable]
    assert len(trained) == 8
    assert all(min(row.largest.values()) > 0 for row in trained)


@pytest.mark.parametrize("backend", ["mlx", "torch"])
def test_an_unused_parameter_stops_a_run_before_it_writes(
    backend, series_config, series_task, tmp_path
):
    import torch

    config = series_config()
    task = series_task(config)
    task.module.unused = torch.nn.Linear(2, 2)
    with pytest.raises(PreflightError, match=r"model\.unused\.weight: trainable, but"):
        train(config, tmp_path / "run", backend=backend, task=task)
    assert not list(tmp_path.iterdir())


def test_a_frozen_unused_parameter_is_left_alone(series_config, series_task, tmp_path):
    import torch

    from weighbridge.trainers.tasks import build_task

    config = series_config(freeze=["unused"])
    module = series_task(config_without_freeze(config)).module
    module.unused = torch.nn.Linear(2, 2)
    before = module.unused.weight.detach().clone()
    train(config, tmp_path / "run", task=build_task(config, module))
    assert torch.equal(module.unused.weight, before)


def config_without_freeze(config):
    return config.model_copy(update={"freeze": ()})


@pytest.mark.parametrize(
    "off", [0.0, 2e-3, -1.0, np.nan], ids=["exact", "rounded", "zero", "not a number"]
)
def test_a_device_that_rounds_products_is_compared_on_the_cpu_and_told_of(
    off, series_config, series_task, monkeypatch
):
    """MLX on CUDA, and on Metal from the M5 on, multiplies in TF32: every correct run was refused."""
    now = [mx.Device(mx.gpu)]  # a build without one has the name all the same
    monkeypatch.setattr(mx, "default_device", lambda: now[0])
    monkeypatch.setattr(mx, "set_default_device", lambda it: now.__setitem__(0, it))
    call = MlxStep._call

    def rounded(self, inputs):
        return call(self, inputs) * (1 if now[0] == mx.Device(mx.cpu) else 1 + off)

    monkeypatch.setattr(MlxStep, "_call", rounded)
    config = series_config()
    task = series_task(config)
    checked = _check(task, config, make_step("mlx", task, config))
    compared = [row.difference for row in checked.rows if row.trainable]
    assert max(compared) <= 1e-5
    assert now == [mx.Device(mx.gpu)]
    told = [it for it in checked.notes if it.startswith("MLX was compared with PyTorch on the CPU")]
    assert len(told) == (off not in (0, -1))
    assert checked.ok == (off in (0, 2e-3))  # the hardest batches are computed where it trains
    assert any("more than TF32 explains" in it for it in checked.problems) == (off == -1)
    if off == 2e-3:
        assert "gradients are up to 2.0e-03 (of the largest)" in told[0]
