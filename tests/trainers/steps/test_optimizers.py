"""Optimizers by name: the arithmetic of PyTorch in both backends, groups, and states that go on."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import torch

from weighbridge.errors import MismatchError
from weighbridge.trainers.configuration.updates import AdamWSection, MuonSection
from weighbridge.trainers.runs.loop import make_step
from weighbridge.trainers.steps.groups import grouped, shape_factor
from weighbridge.trainers.steps.mlx_optimizers import Optimizers as MlxOptimizers
from weighbridge.trainers.steps.torch import TorchStep
from weighbridge.trainers.steps.torch_optimizers import Optimizers as TorchOptimizers

BACKENDS = ["mlx", "torch"]
SETTINGS = {
    "adamw": {"weight_decay": 0.1},
    "adam": {"weight_decay": 0.1},
    "sgd": {"weight_decay": 0.1},
    "sgd-momentum": {"momentum": 0.9},
    "sgd-nesterov": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    "lion": {"weight_decay": 0.1},
    "adafactor": {"weight_decay": 0.1},
    "muon": {"learning_rate": 1e-2},
    "muon-match": {"adjust": "match_rms_adamw", "nesterov": False, "weight_decay": 0.0},
}
THEIRS = {  # in float64
    "adamw": (torch.optim.AdamW, {}),
    "adam": (torch.optim.Adam, {}),
    "sgd": (torch.optim.SGD, {}),
    "sgd-momentum": (torch.optim.SGD, {}),
    "sgd-nesterov": (torch.optim.SGD, {}),
    "adafactor": (torch.optim.Adafactor, {"eps": (2.0**-23, 1e-3)}),
}
SHAPES = {"a.weight": (6, 4), "b.weight": (3, 5), "b.bias": (3,), "c.kernel": (2, 3, 4)}


def optimizer(case, **more):
    return {"name": case.partition("-")[0], "learning_rate": 1e-3} | SETTINGS[case] | more


def section(series_config, case, **more):
    return series_config(optimizer=optimizer(case, **more)).optimizer


def values(seed):
    generator = np.random.default_rng(seed)
    return {name: generator.normal(size=shape) for name, shape in SHAPES.items()}


def updated(settings, steps=20):
    """Return the parameters after STEPS updates in MLX, and in PyTorch."""
    start = values(0)
    mlx = {name: mx.array(value.astype(np.float32)) for name, value in start.items()}
    ours = MlxOptimizers(settings, mlx)
    tensors = {name: torch.nn.Parameter(torch.tensor(np.array(mlx[name]))) for name in mlx}
    theirs = TorchOptimizers(settings, tensors)
    for number in range(steps):
        rate = settings.learning_rate * (1 - number / steps)
        gradients = {k: v.astype(np.float32) for k, v in values(number + 1).items()}
        ours.set_rate(rate)
        mlx = ours.apply({name: mx.array(value) for name, value in gradients.items()}, mlx)
        for name, parameter in tensors.items():
            parameter.grad = torch.from_numpy(gradients[name])
        theirs.step(rate)
    return mlx, {name: value.detach().numpy() for name, value in tensors.items()}


@pytest.mark.parametrize("case", SETTINGS)
def test_mlx_and_torch_update_alike(case, series_config):
    mlx, tensors = updated(section(series_config, case))
    start = values(0)
    moved = max(np.abs(tensors[name] - start[name]).max() for name in start)
    apart = max(np.abs(np.array(mlx[name]) - tensors[name]).max() for name in start)
    assert apart <= 1e-5 * max(moved, 1)
    assert moved > 1e-3


@pytest.mark.parametrize("case", THEIRS)
def test_updates_are_those_of_torch_in_float64(case, series_config):
    settings = section(series_config, case)
    kind, more = THEIRS[case]
    own = {k: v for k, v in SETTINGS[case].items() if k != "learning_rate"}
    start = values(0)
    tensors = [torch.nn.Parameter(torch.tensor(value)) for value in start.values()]
    theirs = kind(tensors, lr=settings.learning_rate, **own | more)
    for number in range(20):
        for parameter, gradient in zip(tensors, values(number + 1).values(), strict=True):
            parameter.grad = torch.tensor(gradient)
        theirs.param_groups[0]["lr"] = settings.learning_rate * (1 - number / 20)
        theirs.step()
    mlx, _ = updated(settings)
    for name, tensor in zip(start, tensors, strict=True):
        assert np.allclose(np.array(mlx[name]), tensor.detach().numpy(), atol=2e-6), name


def test_muon_is_that_of_torch_but_for_its_rounding_to_bfloat16():
    generator = np.random.default_rng(0)
    start, gradients = generator.normal(size=(8, 5)), generator.normal(size=(3, 8, 5))
    settings = MuonSection(name="muon", learning_rate=0.01)
    sides = [torch.nn.Parameter(torch.tensor(start, dtype=torch.float32)) for _ in range(2)]
    ours = TorchOptimizers(settings, {"w": sides[0]})
    theirs = torch.optim.Muon([sides[1]], lr=0.01)
    for gradient in gradients:
        for side in sides:
            side.grad = torch.tensor(gradient, dtype=torch.float32)
        ours.step(0.01)
        theirs.step()
    moved = (sides[1] - torch.tensor(start)).norm()
    assert (sides[0] - sides[1]).norm() / moved < 0.02  # bfloat16 has 8 bits


def test_groups_have_their_own_rates_and_decays_and_the_first_counts():
    settings = AdamWSection.model_validate_json(
        '{"learning_rate": 0.01, "groups": [{"match": ["bias"], "weight_decay": 0},'
        ' {"match": ["b.*"], "learning_rate": 0.02}]}'
    )
    first, second, rest = grouped(settings, {f"model.{name}": it for name, it in SHAPES.items()})
    assert (first.names, first.factor, first.settings.weight_decay) == (("model.b.bias",), 1, 0)
    assert (second.names, second.factor) == (("model.b.weight",), 2)
    assert second.settings.weight_decay == 0.01
    assert (rest.names, rest.factor) == (("model.a.weight", "model.c.kernel"), 1)


def test_a_group_names_parameters_as_the_model_calls_them():
    """Inside a loss every one of them is the model's: ``freeze: [head.*]`` and a group mean the same."""
    shapes = {"model.head.weight": (2, 2), "model.body.weight": (2, 2)}
    settings = AdamWSection.model_validate_json('{"groups": [{"match": ["head.*"]}]}')
    assert [it.names for it in grouped(settings, shapes)] == [(it,) for it in shapes]
    muon = MuonSection(name="muon", adamw=("head.*",))
    assert [it.names for it in grouped(muon, shapes)] == [(it,) for it in reversed(shapes)]


def test_a_group_that_is_left_nothing_by_those_before_it_is_refused():
    settings = AdamWSection.model_validate_json(
        '{"groups": [{"match": ["b"]}, {"match": ["b.bias"], "weight_decay": 0}]}'
    )
    with pytest.raises(MismatchError, match=r"optimizer\.groups\.1 changes nothing"):
        grouped(settings, SHAPES)


def test_a_group_of_nothing_is_refused_with_the_nearest_name():
    settings = AdamWSection.model_validate_json('{"groups": [{"match": ["biass"]}]}')
    with pytest.raises(MismatchError, match="biass"):
        grouped(settings, SHAPES)


def test_muon_leaves_what_is_no_matrix_to_adamw():
    settings = MuonSection(name="muon", adamw=("a",), adamw_learning_rate=4e-3)
    muon, adamw = grouped(settings, SHAPES)
    assert (muon.names, adamw.names) == (("b.weight",), ("a.weight", "b.bias", "c.kernel"))
    assert (adamw.settings.name, adamw.factor) == ("adamw", 4)


@pytest.mark.parametrize("shape", [(8, 2), (2, 8), (5, 5)])
@pytest.mark.parametrize("adjust", ["original", "match_rms_adamw"])
def test_muon_scales_by_the_shape_as_torch_does(shape, adjust):
    from torch.optim._muon import _adjust_lr

    assert shape_factor(shape, adjust) == pytest.approx(_adjust_lr(1.0, adjust, torch.Size(shape)))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", ["sgd", "sgd-momentum", "lion", "adafactor", "muon"])
def test_a_restored_optimizer_goes_on_exactly(backend, case, series_config, series_task):
    groups = [{"match": ["*.bias"], "weight_decay": 0.0, "learning_rate": 0.02}]
    config = series_config(optimizer=optimizer(case, groups=groups))
    task = series_task(config)
    batches = [task.splits["train"].batch(task.order(config)[n]) for n in range(3)]
    step = make_step(backend, task, config)
    fresh = step.state().keys()
    step.advance([batches[0]], 0.01)()
    state = step.state()
    ends = []
    for _ in range(2):
        step.restore(state)
        measures = [step.advance([batch], 0.01)() for batch in batches[1:]]
        ends.append((measures, step.state()))
    (one, first), (other, second) = ends
    assert one == other
    assert fresh == state.keys() == first.keys()
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_groups_train_alike_in_both_backends(series_config, series_task):
    groups = [{"match": ["bias"], "weight_decay": 0.0}, {"match": ["head"], "learning_rate": 0.03}]
    config = series_config(optimizer=optimizer("adamw", weight_decay=0.5, groups=groups))
    task = series_task(config)
    sides = [make_step("mlx", task, config), TorchStep(task, config)]
    for number in range(6):
        batch = task.splits["train"].batch(task.order(config)[number])
        for side in sides:
            side.advance([batch], 1e-3)()
    mlx, tensors = (side.trainable() for side in sides)
    assert all(np.allclose(mlx[name], tensors[name], atol=1e-5) for name in tensors)
