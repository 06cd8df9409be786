"""Train and eval mode: what drops, which statistics move, and what is put back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from weighbridge.errors import UnsupportedError
from weighbridge.trainers.runs.loop import make_step, train
from weighbridge.trainers.tasks import build_task

BACKENDS = ["mlx", "torch"]


class Normed(nn.Module):
    """A forecast through batch statistics and, perhaps, dropout; ``tower`` has its own statistics."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.tower = nn.Sequential(nn.Conv1d(2, 4, 3, bias=False), nn.BatchNorm1d(4), nn.Tanh())
        self.norm = nn.BatchNorm1d(24)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(24, 3)

    def forward(self, series):
        return self.head(self.drop(torch.tanh(self.norm(self.tower(series).flatten(1)))))


def make(dropout=0.0):
    torch.manual_seed(4)
    return Normed(dropout)


def batches(task, config, count):
    order = task.order(config)
    return [task.splits["train"].batch(order[number]) for number in range(count)]


def same(one, other, *, but=()):
    kept = [name for name in one if name not in but]
    return one.keys() == other.keys() and all(np.array_equal(one[k], other[k]) for k in kept)


@pytest.mark.parametrize("backend", BACKENDS)
def test_batch_statistics_train_as_in_a_loop_of_torch(backend, series_config):
    config = series_config(clip_norm=None)
    task = build_task(config, make())
    step = make_step(backend, task, config)
    module = make()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01, weight_decay=0.01)
    for batch in batches(task, config, 5):
        inputs = {name: torch.from_numpy(value) for name, value in batch.inputs.items()}
        loss = nn.functional.mse_loss(module(inputs["series"]), inputs["target"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert step.advance([batch], 0.01)().loss == pytest.approx(loss.item(), abs=1e-5)
    found, wanted = step.weights(), module.state_dict()
    assert found.keys() == {f"model.{name}" for name in wanted}
    for name, value in wanted.items():
        assert np.allclose(found[f"model.{name}"], value.numpy(), atol=2e-4), name
    evaluated = nn.functional.mse_loss(module.eval()(inputs["series"]), inputs["target"])
    assert step.loss(batch.inputs) == pytest.approx(evaluated.item(), abs=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_dropout_drops_in_updates_and_not_in_evaluation(backend, series_config):
    config = series_config()
    task = build_task(config, make(dropout=0.5))
    step = make_step(backend, task, config)
    [batch] = batches(task, config, 1)
    before = step.loss(batch.inputs)
    assert before == step.loss(batch.inputs)
    losses = [step.advance([batch], 1e-12)().loss for _ in range(3)]
    assert len({round(loss, 5) for loss in losses}) == 3


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("parts", [1, 2])
def test_an_update_that_is_not_finite_puts_the_statistics_back(backend, parts, series_config):
    config = series_config()
    task = build_task(config, make(dropout=0.5))
    step = make_step(backend, task, config)
    good, bad = batches(task, config, 2)
    step.advance([good], 0.1)()
    before = step.state()
    assert sum(name.startswith("buffers/") for name in before) == 6
    bad.inputs["target"][0] = np.nan
    assert not step.advance([good, bad][-parts:], 0.1)().finite
    assert same(before, step.state(), but=["random"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_restored_state_goes_on_exactly_with_dropout_and_statistics(backend, series_config):
    config = series_config()
    task = build_task(config, make(dropout=0.5))
    first, second, third = batches(task, config, 3)
    one = make_step(backend, task, config)
    one.advance([first], 0.01)()
    state = one.state()
    straight = [one.advance([batch], 0.01)() for batch in (second, third)]
    end = one.state()
    other = make_step(backend, task, config)
    other.restore(state)
    other.loss(second.inputs)  # evaluation between changes nothing
    assert [other.advance([batch], 0.01)() for batch in (second, third)] == straight
    assert same(end, other.state())


@pytest.mark.parametrize("backend", BACKENDS)
def test_parts_given_in_eval_mode_stay_in_it(backend, series_config):
    config, module = series_config(), make()
    module.tower.eval()
    task = build_task(config, module)
    step = make_step(backend, task, config)
    step.advance(batches(task, config, 1), 0.01)()
    moved = {name for name in step.weights() if "running" in name or "tracked" in name}
    assert moved == {
        f"model.norm.{x}" for x in ("running_mean", "running_var", "num_batches_tracked")
    }
    assert not module.tower.training
    assert module.norm.training


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("mode", "given", "said"), [("eval", True, "mode eval"), ("train", False, "call .train()")]
)
def test_what_is_off_is_said(backend, mode, given, said, series_config):
    config = series_config(mode=mode)
    task = build_task(config, make(dropout=0.5).train(given))
    step = make_step(backend, task, config)
    [batch] = batches(task, config, 1)
    assert any(said in notice for notice in step.notices)
    assert step.advance([batch], 1e-12)().loss == pytest.approx(step.loss(batch.inputs), rel=1e-6)
    assert step.weights().keys() == step.trainable().keys()


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_gradients_of_both_backends_compare(dropout, series_config):
    config = series_config()
    task = build_task(config, make(dropout))
    [batch] = batches(task, config, 1)
    steps = [make_step(backend, task, config) for backend in BACKENDS]
    states = [step.state() for step in steps]
    found = [step.gradients(batch) for step in steps]
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    assert all(np.allclose(found[0][1][k], found[1][1][k], atol=1e-5) for k in found[1][1])
    assert all(same(state, step.state()) for state, step in zip(states, steps, strict=True))
    module = make(dropout).train(not dropout)  # statistics of the batch where nothing is drawn
    tensors = {name: torch.from_numpy(value) for name, value in batch.inputs.items()}
    nn.functional.mse_loss(module(tensors["series"]), tensors["target"]).backward()
    assert np.allclose(found[1][1]["model.head.weight"], module.head.weight.grad.numpy(), atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_written_result_has_the_statistics(backend, series_config, tmp_path):
    from safetensors.numpy import load_file

    config = series_config(optimizer={"learning_rate": 0.01}, steps=4)
    result = train(config, tmp_path / "run", backend=backend, task=build_task(config, make()))
    written = load_file(tmp_path / "run" / "model.safetensors")
    assert result.best_step in (3, 4)
    assert written["norm.num_batches_tracked"] == result.best_step
    assert written.keys() == make().state_dict().keys()


class Choosing(nn.Module):
    """In train mode alone it asks for a value of its input, which no recording can."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(16, 3)

    def forward(self, series):
        flat = series.flatten(1)
        return self.head(flat) * (2 if self.training and flat.sum().item() > 0 else 1)


def test_what_cannot_be_recorded_in_train_mode_is_refused_with_a_cure(series_config):
    config = series_config()
    with pytest.raises(UnsupportedError, match=r"(?s)in train mode: .*--set mode=eval"):
        make_step("mlx", build_task(config, Choosing()), config)
    config = series_config(mode="eval")
    make_step("mlx", build_task(config, Choosing()), config)


def test_evaluation_has_no_parameters_of_its_own(series_config):
    config = series_config()
    task = build_task(config, make())
    step = make_step("mlx", task, config)
    [batch] = batches(task, config, 1)
    step.embed({"series": batch.inputs["series"]})
    assert step._evaluated["model"] is step.model["model"]


def test_a_compiled_step_moves_statistics_as_a_plain_one(series_config):
    from weighbridge.trainers.steps.compiler import compile_problem

    if compile_problem():
        pytest.skip(compile_problem())
    config = series_config()
    ends = []
    for compiled in (True, False):
        own = config.model_copy(update={"compile": compiled})
        task = build_task(own, make(dropout=0.5))
        step = make_step("mlx", task, own)
        one, two, bad = batches(task, own, 3)
        bad.inputs["target"][0] = np.nan
        for update in ([one], [one, two], [bad], [two]):
            step.advance(update, 0.01)()
        ends.append(step.state())
    assert all(np.allclose(ends[0][name], ends[1][name], atol=1e-6) for name in ends[1])
