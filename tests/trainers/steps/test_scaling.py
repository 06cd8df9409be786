"""Computing in 16 bits on float32 parameters, the scale of the loss, and averages of the parameters."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import torch
from mlx.utils import tree_flatten
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from weighbridge.trainers.runs.loop import make_step, train
from weighbridge.trainers.steps.scaling import INTERVAL, LARGEST, MlxExtras, TorchExtras
from weighbridge.trainers.steps.torch import TorchStep

BACKENDS = ["mlx", "torch"]


def batches(task, config, count):
    order = task.order(config)
    return [task.splits["train"].batch(order[number]) for number in range(count)]


def distance(one, other):
    return max(np.abs(one[name] - other[name]).max() for name in one)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits_compute_and_float32_is_trained_alike_in_both(dtype, series_config, series_task):
    config = series_config(dtype=dtype, optimizer={"name": "sgd", "learning_rate": 0.1})
    task = series_task(config)
    sides = [make_step(backend, task, config) for backend in BACKENDS]
    full = TorchStep(task, series_config(optimizer=config.optimizer.model_dump()))
    start = full.trainable()
    for batch in batches(task, config, 10):
        losses = [side.advance([batch], 0.1)().loss for side in (*sides, full)]
    eps = {"bfloat16": 2.0**-8, "float16": 2.0**-11}[dtype]
    mlx, narrow, wide = (side.trainable() for side in (*sides, full))
    moved = distance(wide, start)
    assert {value.dtype for value in (*mlx.values(), *narrow.values())} == {np.dtype(np.float32)}
    assert losses[:2] == pytest.approx([losses[2]] * 2, rel=4 * eps)
    assert distance(mlx, wide) <= 4 * max(distance(narrow, wide), eps * moved) <= 40 * eps * moved
    assert distance(narrow, wide) > 0  # it did compute in 16 bits


@pytest.mark.parametrize("backend", BACKENDS)
def test_small_updates_of_bfloat16_are_not_lost(backend, series_config, series_task):
    """Of a weight near 1, bfloat16 would round every step of 1e-4 away."""
    config = series_config(dtype="bfloat16")
    task = series_task(config)
    step = make_step(backend, task, config)
    before = step.trainable()
    for batch in batches(task, config, 3):
        step.advance([batch], 1e-4)()
    assert 1e-4 < distance(before, step.trainable()) < 4e-4


def test_what_is_not_trained_is_held_in_16_bits(series_config, series_task):
    config = series_config(dtype="bfloat16", freeze=["convolution", "hidden.weight"])
    task = series_task(config)
    wide, frozen = {"hidden.bias", "head.weight", "head.bias"}, {"hidden.weight"}
    frozen |= {"convolution.weight", "convolution.bias"}
    mlx, torch_side = (make_step(backend, task, config) for backend in BACKENDS)
    arrays = {
        name.removeprefix("model."): it.dtype for name, it in tree_flatten(mlx.model.parameters())
    }
    tensors = {
        name.removeprefix("model."): it.dtype for name, it in torch_side._loss.named_parameters()
    }
    assert {arrays[name] for name in frozen} == {mx.bfloat16}
    assert {arrays[name] for name in wide} == {mx.float32}
    assert {tensors[name] for name in frozen} == {torch.bfloat16}
    assert {tensors[name] for name in wide} == {torch.float32}
    batch = batches(task, config, 1)
    losses = [side.advance(batch, 1e-2)().loss for side in (mlx, torch_side)]
    assert losses[0] == pytest.approx(losses[1], rel=2.0**-7)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gradient_beyond_float16_halves_the_scale_and_changes_nothing_else(
    backend, series_config, series_task
):
    config = series_config(dtype="float16", clip_norm=None)
    task = series_task(config)
    step = make_step(backend, task, config)
    [batch] = batches(task, config, 1)
    batch.inputs["target"][:] *= 50  # its gradient fits float16, times the scale it does not
    before = step.state()
    found = step.advance([batch], config.optimizer.learning_rate)()
    after = step.state()
    assert (found.finite, found.overflow) == (False, True)
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {"extras/scale"}
    assert after["extras/scale"] == before["extras/scale"] / 2 == LARGEST / 2
    found = [step.advance([batch], 1e-3)().finite for _ in range(16)]
    assert found == sorted(found)
    assert found[-1]
    step.restore(before)
    assert np.array_equal(step.state()["extras/scale"], before["extras/scale"])


@pytest.mark.parametrize("finite", [INTERVAL - 1, INTERVAL])
def test_the_scale_grows_after_an_interval_as_that_of_torch(finite):
    import mlx.core as mx

    sides = MlxExtras("float16", None, {}), TorchExtras("float16", None, {})
    theirs = torch.amp.GradScaler("cpu", init_scale=LARGEST / 2, growth_interval=INTERVAL)
    theirs._lazy_init_scale_growth_tracker(torch.device("cpu"))
    for good in [False, *[True] * finite]:
        sides[0].after(mx.array(good), {})
        sides[1].after(finite=good, parameters={})
        mx.eval(sides[0].state)
        if good:
            torch._amp_update_scale_(
                theirs._scale, theirs._growth_tracker, torch.tensor(0.0), 2.0, 0.5, INTERVAL
            )
    assert float(sides[0].scale) == sides[1].scale == theirs._scale.item()


@pytest.mark.parametrize("backend", BACKENDS)
def test_averages_are_those_of_torch_and_evaluation_uses_them(backend, series_config, series_task):
    config = series_config(ema=0.9, clip_norm=None)
    task = series_task(config)
    step = make_step(backend, task, config)
    module = task.loss
    averaged = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for batch in batches(task, config, 4):
        step.advance([batch], 0.01)()
        own = {name: torch.from_numpy(value) for name, value in step.trainable().items()}
        module.load_state_dict(own)
        averaged.update_parameters(module)
    wanted = {name: value.detach().numpy() for name, value in averaged.module.named_parameters()}
    assert distance(step.weights(), wanted) < 1e-6 < distance(step.trainable(), wanted)
    inputs = {name: torch.from_numpy(value) for name, value in batch.inputs.items()}
    assert step.loss(batch.inputs) == pytest.approx(averaged.module(**inputs).item(), rel=1e-5)
    state = step.state()
    ends = []
    for _ in range(2):
        step.restore(state)
        step.advance([batch], 0.01)()
        ends.append(step.state())
    assert all(np.array_equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_a_run_with_averages_in_bfloat16_writes_them(series_config, series_task, tmp_path):
    from safetensors.numpy import load_file

    config = series_config(ema=0.5, dtype="bfloat16", steps=3, validate_every=3, checkpoint_every=3)
    result = train(config, tmp_path / "run", task=series_task(config))
    written = load_file(tmp_path / "run" / "model.safetensors")
    kept = load_file(tmp_path / "run" / "checkpoints" / "step-00000003" / "state.safetensors")
    assert result.best_step == 3
    for name, value in written.items():
        assert np.array_equal(value, kept[f"extras/average.model.{name}"])
        assert not np.array_equal(value, kept[f"parameters/model.{name}"])
