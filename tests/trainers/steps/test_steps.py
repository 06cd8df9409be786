"""One update: the same in MLX and PyTorch, and what an optimiser should do."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import torch

from weighbridge.trainers.data.batches import Batch
from weighbridge.trainers.evaluation import measure_loss
from weighbridge.trainers.objectives.base import Objective
from weighbridge.trainers.objectives.base import labels as labels_that_count
from weighbridge.trainers.runs.loop import make_step
from weighbridge.trainers.steps.mlx_update import _squares
from weighbridge.trainers.steps.torch import TorchStep
from weighbridge.trainers.tasks import Task

BACKENDS = ["mlx", "torch"]
GPU = "mlx as on a GPU"


def first(task, config, number=0):
    return task.splits["train"].batch(task.order(config)[number])


def distance(one, other):
    return max(np.abs(one[name] - other[name]).max() for name in one)


def test_mlx_is_as_near_to_float64_as_torch_is(series_config, series_task):
    config = series_config(optimizer={"learning_rate": 0.01, "weight_decay": 0.1})
    task = series_task(config)
    sides = [make_step(name, task, config) for name in BACKENDS]
    sides.append(TorchStep(task, config, "float64"))
    for number in range(12):
        for side in sides:
            side.advance([first(task, config, number)], 0.01)()
    mlx, single, double = (side.trainable() for side in sides)
    assert distance(mlx, double) <= 4 * max(distance(single, double), 1e-7)
    assert distance(single, double) < 1e-5


@pytest.mark.parametrize("backend", BACKENDS)
def test_accumulated_batches_have_the_gradient_of_the_whole(backend, series_config, series_task):
    config = series_config(clip_norm=None)
    task = series_task(config)
    data = task.splits["train"]
    parts, whole = [data.batch(range(3)), data.batch(range(3, 11))], data.batch(range(11))
    together, apart = (make_step(backend, task, config) for _ in range(2))
    one, other = together.advance([whole], 0.1)(), apart.advance(parts, 0.1)()
    assert one.loss == pytest.approx(other.loss, rel=1e-6)
    assert one.gradient_norm == pytest.approx(other.gradient_norm, rel=1e-5)


class Tagger(torch.nn.Module):
    """The mean cross entropy of the labels that count."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, labels):
        return torch.nn.functional.cross_entropy(self.model(ids).flatten(0, 1), labels.flatten())


@pytest.mark.parametrize("backend", BACKENDS)
def test_ragged_batches_of_labels_have_the_gradient_of_the_whole(
    backend, series_config, series_task
):
    axes = {0: "batch", 1: "sequence"}
    objective = Objective(
        Tagger,
        None,
        {"ids": axes, "labels": axes},
        None,
        labels_that_count,
        "loss",
        False,
        measure_loss,
    )
    generator = np.random.default_rng(1)
    ids, labels = generator.integers(1, 9, (2, 6, 7))
    labels[np.arange(7) >= np.array([[7], [1], [2], [6], [0], [0]])] = -100

    def rows(chosen):
        chosen = list(chosen)
        return Batch({"ids": ids[chosen], "labels": labels[chosen]}, len(chosen), 0)

    class Rows:
        batch = staticmethod(rows)

        def __len__(self):
            return len(ids)

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(9, 5), torch.nn.Linear(5, 9))
    splits = {"train": Rows()}
    config = series_config(clip_norm=None)
    task = Task(None, model, objective, splits, {}, {})
    whole, apart = (make_step(backend, task, config) for _ in range(2))
    one = whole.advance([rows(range(6))], 0.1)()
    other = apart.advance([rows(x) for x in ([0], [1, 2], [4, 5], [3])], 0.1)()
    assert one.loss == pytest.approx(other.loss, rel=1e-6)
    assert one.gradient_norm == pytest.approx(other.gradient_norm, rel=1e-5)
    assert distance(whole.trainable(), apart.trainable()) < 1e-5


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_first_update_has_the_size_of_the_learning_rate(backend, series_config, series_task):
    """Adam's first step is the learning rate, with bias correction; 3.2 times that without."""
    config = series_config(optimizer={"weight_decay": 0.0})
    task = series_task(config)
    step = make_step(backend, task, config)
    before = step.trainable()
    step.advance([first(task, config)], 0.01)()
    assert distance(before, step.trainable()) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_norm_reported_is_that_before_clipping(backend, series_config, series_task):
    norms = []
    for clip in (None, 1e-3):
        config = series_config(clip_norm=clip)
        task = series_task(config)
        norms.append(
            make_step(backend, task, config).advance([first(task, config)], 0.1)().gradient_norm
        )
    assert norms[0] == pytest.approx(norms[1], rel=1e-6)
    assert norms[0] > 1e-3


def test_clipping_is_the_same_in_both(series_config, series_task):
    config = series_config(clip_norm=0.05, optimizer={"eps": 0.1})  # eps makes the scale matter
    task = series_task(config)
    sides = [make_step(name, task, config) for name in BACKENDS]
    before = sides[0].trainable()
    for side in sides:
        side.advance([first(task, config)], 0.1)()
    assert (
        distance(*(side.trainable() for side in sides))
        < 1e-6
        < distance(before, sides[0].trainable())
    )


def begun(way, task, config):
    """Return a step; of MLX on a GPU no update waits until it has been seen to be finite."""
    step = make_step(way.partition(" ")[0], task, config)
    if way == GPU:
        step._waits = False
    return step


@pytest.mark.parametrize("way", [*BACKENDS, GPU])
def test_nothing_changes_where_the_gradient_is_not_finite(way, series_config, series_task):
    config = series_config(ema=0.9)
    task = series_task(config)
    step = begun(way, task, config)
    step.advance([first(task, config)], 0.1)()
    before = step.state()
    bad = first(task, config, 1)
    bad.inputs["target"][0] = np.nan
    assert not step.advance([bad], 0.1)().finite
    after = step.state()
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_an_update_is_the_same_whether_it_waits_or_not(series_config, series_task):
    config = series_config(ema=0.9)
    task = series_task(config)
    sides = [begun(way, task, config) for way in ("mlx", GPU)]
    for number in range(3):
        found = [side.advance([first(task, config, number)], 0.1)() for side in sides]
        assert found[0] == found[1]
    states = [side.state() for side in sides]
    assert all(np.array_equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_state_restored_in_another_process_goes_on_exactly(backend, series_config, series_task):
    config = series_config()
    task = series_task(config)
    one, other = (make_step(backend, task, config) for _ in range(2))
    one.advance([first(task, config)], 0.1)()
    other.restore({name: value.copy() for name, value in one.state().items()})
    measures = [side.advance([first(task, config, 1)], 0.1)() for side in (one, other)]
    assert measures[0] == measures[1]
    states = one.state(), other.state()
    assert all(np.array_equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_frozen_parameters_stay(backend, series_config, series_task):
    config = series_config(freeze=["convolution", "*.bias"])
    task = series_task(config)
    step = make_step(backend, task, config)
    assert sorted(step.trainable()) == ["model.head.weight", "model.hidden.weight"]
    assert sorted(step.gradients(first(task, config))[1]) == sorted(step.trainable())


def test_embeddings_follow_the_parameters_and_agree(pairs_config, pairs_task):
    config = pairs_config()
    task = pairs_task(config)
    sides = [make_step(name, task, config) for name in BACKENDS]
    ids, mask = task.splits["validation"].padded("query", range(5))
    inputs = {"ids": ids, "mask": mask}
    before = [side.embed(inputs) for side in sides]
    for side in sides:
        side.assign({name: value + 0.1 for name, value in side.trainable().items()})
    after = [side.embed(inputs) for side in sides]
    assert np.allclose(*before, atol=1e-5)
    assert np.allclose(*after, atol=1e-5)
    assert np.abs(before[0] - after[0]).max() > 1e-3
    assert np.allclose(np.linalg.norm(after[0], axis=1), 1)


@pytest.mark.compiled
@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["series", "pairs"])
def test_a_compiled_step_is_the_same_bit_for_bit(kind, request):
    from weighbridge.trainers.steps.compiler import compile_problem

    if compile_problem():
        pytest.skip(compile_problem())
    config = request.getfixturevalue(f"{kind}_config")(compile=True)
    task = request.getfixturevalue(f"{kind}_task")(config)
    compiled = make_step("mlx", task, config)
    plain = make_step("mlx", task, config.model_copy(update={"compile": False}))
    assert compiled.notices == plain.notices
    for number in range(4):
        batches = [first(task, config, number)] * (1 + number % 2)
        assert compiled.advance(batches, 0.01)() == plain.advance(batches, 0.01)()
    states = compiled.state(), plain.state()
    assert all(np.array_equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.compiled
@pytest.mark.heavy
def test_an_optimizer_compiled_alone_is_the_same_bit_for_bit_and_on_resume(
    series_config, series_task, monkeypatch
):
    from weighbridge.trainers.steps import mlx
    from weighbridge.trainers.steps.compiler import compile_problem

    if compile_problem():
        pytest.skip(compile_problem())
    config = series_config(ema=0.9)
    task = series_task(config)
    plain = make_step("mlx", task, config.model_copy(update={"compile": False}))
    monkeypatch.setattr(mlx, "optimizer_pays", lambda sizes, updates: True)
    compiled, resumed = (make_step("mlx", task, config) for _ in range(2))
    for number in range(4):
        batches = [first(task, config, number)] * (1 + number % 2)
        if number == 2:
            resumed.restore(compiled.state())
        sides = (compiled, plain, resumed) if number >= 2 else (compiled, plain)
        assert len({side.advance(batches, 0.01)() for side in sides}) == 1
    states = [side.state() for side in (compiled, plain, resumed)]
    for name, kept in states[0].items():
        assert all(np.array_equal(kept, other[name]) for other in states[1:])


def test_without_a_compiler_the_step_runs_uncompiled_and_says_so(
    series_config, series_task, monkeypatch
):
    from weighbridge.trainers.steps import mlx

    monkeypatch.setattr(mlx, "compile_problem", lambda: "g++ is not what it should be")
    config = series_config(compile=True)
    step = mlx.MlxStep(series_task(config), config)
    on_linux_cpu = mlx.mx.default_device() == mlx.mx.Device(mlx.mx.cpu)
    assert ("MLX runs uncompiled: g++ is not what it should be" in step.notices) == on_linux_cpu


def test_torch_adapters_are_those_of_peft(tiny_bert_dir, pairs_config, pairs_task):
    """PEFT scales by alpha / r: rank 2 and alpha 4 are our rank 2 and scale 2."""
    from peft import LoraConfig, get_peft_model
    from transformers import BertModel

    config = pairs_config()
    task = pairs_task(config)
    step = TorchStep(task, config)
    generator = np.random.default_rng(0)
    values = {
        name: generator.normal(size=value.shape).astype(np.float32)
        for name, value in step.trainable().items()
    }
    step.assign(values)
    base = BertModel.from_pretrained(tiny_bert_dir, add_pooling_layer=False)
    theirs = get_peft_model(base, LoraConfig(r=2, lora_alpha=4, target_modules=["query", "value"]))
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "lora_" in name:
                path, half = name.removeprefix("base_model.").split(".lora_")
                parameter.copy_(torch.from_numpy(values[f"{path}.lora_{half[0].lower()}"].T))
    ids = torch.arange(12).reshape(2, 6)
    ours = step._loss.model(input_ids=ids).last_hidden_state
    assert torch.allclose(ours, theirs.eval()(input_ids=ids).last_hidden_state, atol=1e-5)


def test_a_task_says_what_trains(series_config, series_task, pairs_task):
    full = series_task(series_config(freeze=["head"])).parameters()
    assert [name for name, value in full.items() if not value.trainable] == [
        "model.head.weight",
        "model.head.bias",
    ]
    adapted = pairs_task().parameters()
    trained = {name.rsplit(".", 1)[-1] for name, value in adapted.items() if value.trainable}
    assert trained == {"lora_a", "lora_b"}


@pytest.mark.parametrize("shape", [(3, 5), (64, 1024), (999, 384), (2_000_003,)])
def test_the_norm_of_a_gradient_is_that_of_float64(shape):
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    wanted = np.square(array.astype(np.float64)).sum()
    assert float(_squares(mx.array(array)).item()) == pytest.approx(wanted, rel=1e-5)
