"""An objective with parameters of its own, such as a learnable temperature: they train with the model."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import weighbridge
from weighbridge.errors import MismatchError
from weighbridge.tests.trainers.runs.test_loop import Killed, kill_after, records
from weighbridge.trainers.config import validate
from weighbridge.trainers.runs.events import Notice
from weighbridge.trainers.runs.loop import train
from weighbridge.trainers.tasks import build_task

CODE = """
import numpy as np
import torch
from torch import nn


class Points:
    def __init__(self, split):
        generator = np.random.default_rng(["train", "validation"].index(split))
        self.x = generator.standard_normal((24, 4)).astype(np.float32)
        self.y = (self.x.sum(1, keepdims=True) + generator.normal(0, 2, (24, 1))).astype(np.float32)

    def __len__(self):
        return len(self.x)

    def batch(self, rows):
        return {"x": self.x[rows], "y": self.y[rows]}


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


class Mixed(nn.Module):
    '''What is found is a mixture that begins at random.'''

    def __init__(self, model):
        super().__init__()
        self.model, self.mix = model, nn.Linear(3, 1)

    def forward(self, x):
        return self.mix(self.model(x))


class Unmixed(Mixed):
    def __init__(self, model):
        super().__init__(model)
        self.further = nn.Linear(1, 1)


class Likelihood(nn.Module):
    '''Of a normal distribution whose width is learned, a number without axes as CLIP's logit_scale.'''

    evaluated = Mixed
    evaluated_dynamic = {"x": {0: "batch"}}

    def __init__(self, model):
        super().__init__()
        self.model, self.mix = model, nn.Linear(3, 1)
        self.log_width = nn.Parameter(torch.zeros([]))

    def forward(self, x, y):
        error = self.mix(self.model(x)) - y
        return (error.square() * torch.exp(-2 * self.log_width)).mean() / 2 + self.log_width


class Stray(Likelihood):
    evaluated = Unmixed


class Idle(Likelihood):
    def __init__(self, model):
        super().__init__(model)
        self.idle = nn.Parameter(torch.zeros(2))


class OfEmbeddings(Likelihood):
    from_embeddings = nn.Identity


def error(predict, dataset):
    batch = dataset.batch(range(len(dataset)))
    return np.mean(np.square(predict({"x": batch["x"]}) - batch["y"]))
"""
OWN = {"log_width", "mix.weight", "mix.bias"}
FILE = "objective.safetensors"


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """Return a configuration whose objective has parameters of its own."""
    (tmp_path / "my_losses.py").write_text(textwrap.dedent(CODE))
    monkeypatch.syspath_prepend(tmp_path)
    return {
        "model": "my_losses:build",
        "data": "my_losses:Points",
        "objective": "my_losses:Likelihood",
        "metric": "my_losses:error",
        "higher_is_better": False,
        "batch_size": 8,
        "steps": 12,
        "validate_every": 4,
        "checkpoint_every": 3,
        "optimizer": {"learning_rate": 0.05},
    }


def begun(settings):
    """Return the objective's own parameters as they are before the first update, by name."""
    task = build_task(validate(settings))
    state = task.objective.make_loss(task.module).state_dict()
    return {name: it.numpy() for name, it in state.items() if name in OWN}


def test_they_train_in_both_backends_alike_and_no_model_holds_them(settings, tmp_path):
    runs = {name: tmp_path / name for name in ("mlx", "torch")}
    first = begun(settings)
    for backend, out in runs.items():
        result = train(validate(settings), out, backend=backend)
        assert result.best["error"] < result.before["error"]
    mlx, pytorch = (load_file(out / FILE) for out in runs.values())
    assert mlx.keys() == pytorch.keys() == OWN
    for name in OWN:
        assert not np.array_equal(mlx[name], first[name])
        np.testing.assert_allclose(mlx[name], pytorch[name], atol=1e-5)
    assert load_file(runs["mlx"] / "model.safetensors").keys() == {
        f"{layer}.{name}" for layer in (0, 2) for name in ("weight", "bias")
    }


@pytest.mark.parametrize("backend", ["mlx", "torch"])
def test_evaluation_sees_them_as_trained(settings, tmp_path, backend):
    import my_losses

    result = train(validate(settings), tmp_path / "run", backend=backend)
    judged = my_losses.Mixed(my_losses.build())
    state = load_file(tmp_path / "run" / "model.safetensors")
    state = {f"model.{name}": it for name, it in state.items()} | load_file(tmp_path / "run" / FILE)
    state.pop("log_width")
    judged.load_state_dict({name: torch.from_numpy(it) for name, it in state.items()})
    with torch.no_grad():
        found = my_losses.error(
            lambda inputs: judged(torch.from_numpy(inputs["x"])).numpy(),
            my_losses.Points("validation"),
        )
    assert found == pytest.approx(result.best["error"], rel=1e-5)


@pytest.mark.parametrize(("backend", "ema"), [("mlx", None), ("torch", None), ("mlx", 0.9)])
def test_a_killed_run_goes_on_with_the_same_bits(settings, tmp_path, backend, ema):
    config = validate(settings | {"ema": ema})
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    train(config, straight, backend=backend)
    with pytest.raises(Killed):
        train(config, broken, backend=backend, progress=kill_after(8))
    train(None, broken, backend=backend, resume=True)
    for name in (FILE, "model.safetensors"):
        assert (straight / name).read_bytes() == (broken / name).read_bytes()
    assert records(straight) == records(broken)


def test_they_train_beside_an_adapter_which_does_not_hold_them(settings, tmp_path):
    adapter = {"rank": 2, "targets": ["0"]}
    train(validate(settings | {"adapter": adapter}), tmp_path / "run", backend="mlx")
    assert load_file(tmp_path / "run" / FILE).keys() == OWN
    factors = load_file(tmp_path / "run" / "adapters.safetensors")
    assert {name.rpartition(".")[2] for name in factors} == {"lora_a", "lora_b"}


def test_they_begin_the_same_for_the_same_seed(settings):
    one, same, other = (begun(settings | {"seed": seed}) for seed in (0, 0, 1))
    assert np.array_equal(one["mix.weight"], same["mix.weight"])
    assert not np.array_equal(one["mix.weight"], other["mix.weight"])


def test_preflight_says_that_they_train_and_where_they_will_lie(settings, tmp_path):
    from weighbridge.trainers.runs.loop import preflight

    checked = preflight(validate(settings))
    assert {row.name for row in checked.rows if row.trainable} >= OWN
    told = []
    train(
        validate(settings | {"steps": 1}), tmp_path / "run", backend="torch", progress=told.append
    )
    (note,) = checked.notes
    assert note in [event.text for event in told if isinstance(event, Notice)]
    assert note.startswith("objective: log_width, mix.weight, mix.bias of its own train")
    assert FILE in note


CACHED = {"objective": "my_losses:OfEmbeddings", "grad_cache": 2, "mode": "eval"}
REFUSED = {
    "evaluated": ({"objective": "my_losses:Stray"}, "further.weight, further.bias"),
    "grad_cache": (CACHED, "log_width"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_those_that_would_not_train_are_refused(settings, case):
    changes, named = REFUSED[case]
    with pytest.raises(MismatchError) as caught:
        build_task(validate(settings | changes))
    assert named in " ".join(caught.value.problems)


def test_one_that_the_loss_does_not_use_is_refused_with_what_to_do(settings, tmp_path):
    with pytest.raises(MismatchError) as caught:
        train(validate(settings | {"objective": "my_losses:Idle"}), tmp_path / "run", backend="mlx")
    (problem,) = caught.value.problems
    assert problem.startswith("idle: trainable, but the loss does not depend on it")
    assert problem.endswith("correct the objective, or call requires_grad_(False) on it")


def test_an_objective_in_memory_gets_its_own_too(settings, tmp_path):
    import my_losses

    own = my_losses.Likelihood(my_losses.build())
    data = {name: my_losses.Points(name) for name in ("train", "validation")}
    short = {"steps": 4, "batch_size": 8, "validate_every": 2, "optimizer": {"learning_rate": 0.05}}
    weighbridge.train(own.model, own, data, short, target=tmp_path / "run", backend="torch")
    kept = load_file(tmp_path / "run" / FILE)
    assert kept.keys() == OWN
    for name, it in own.state_dict().items():
        if name in OWN:
            assert np.array_equal(it.numpy(), kept[name])
    assert own.log_width.item() != 0
