"""An objective with parameters of its own, such as a learnable temperature: they train with the model."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import weighbridge
from weighbridge.errors import MismatchError, UnsupportedError
from weighbridge.tests.trainers.runs.test_loop import Killed, kill_after, records
from weighbridge.trainers.config import validate
from weighbridge.trainers.runs.events import Notice
from weighbridge.trainers.runs.loop import make_step, train
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


class Taught(Likelihood):
    '''Holds another network, which its author forgot to freeze.'''

    def __init__(self, model):
        super().__init__(model)
        self.teacher = nn.Linear(4, 3)

    def forward(self, x, y):
        return super().forward(x, y) + (self.model(x) - self.teacher(x)).square().mean()


class Steady(Likelihood):
    def __init__(self, model):
        super().__init__(model)
        self.steady = nn.Parameter(torch.ones([]), requires_grad=False)


class Following(Taught):
    '''Its teacher follows the model, in training alone or whenever it is asked.'''

    def __init__(self, model, always):
        super().__init__(model)
        self.always = always
        self.teacher.requires_grad_(False)

    def forward(self, x, y):
        if self.training or self.always:
            with torch.no_grad():
                self.teacher.weight.lerp_(self.model[2].weight[:, :4], 0.5)
        return super().forward(x, y)


class Idle(Likelihood):
    def __init__(self, model):
        super().__init__(model)
        self.idle = nn.Parameter(torch.zeros(2))


class Plain(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        return (self.model(x).mean(1, keepdim=True) - y).square().mean()


class OfEmbeddings(Likelihood):
    from_embeddings = nn.Identity


class Counted(Likelihood):
    made = 0

    def __init__(self, model):
        super().__init__(model)
        type(self).made += 1
        with torch.no_grad():  # numbers that the recipe's seed does not reach
            self.log_width += Counted.made + np.random.default_rng().random()


class Watching(Likelihood):
    '''Adds what an inner layer finds, which a hook puts aside: it knows the module that it was made for.'''

    def __init__(self, model):
        super().__init__(model)
        self.inner = None
        model[0].register_forward_hook(lambda module, inputs, found: setattr(self, "inner", found))

    def forward(self, x, y):
        return super().forward(x, y) + self.inner.square().mean()


class Generating(Likelihood):
    '''Holds what Python cannot copy.'''

    def __init__(self, model):
        super().__init__(model)
        self.generator = torch.Generator()


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
    state = build_task(validate(settings)).loss.state_dict()
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
    assert problem.endswith("freeze it (--set freeze=[objective.idle]) or correct the objective")


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


@pytest.mark.parametrize("backend", ["mlx", "torch"])
def test_the_objective_is_made_once(settings, tmp_path, backend):
    import my_losses

    my_losses.Counted.made = 0
    train(
        validate(settings | {"objective": "my_losses:Counted"}), tmp_path / "run", backend=backend
    )
    assert my_losses.Counted.made == 1


@pytest.mark.parametrize("name", ["Watching", "Generating"])
def test_an_objective_that_cannot_be_copied_trains_as_it_would_alone(settings, tmp_path, name):
    import my_losses

    sgd = {"name": "sgd", "learning_rate": 0.05}
    changes = {"objective": f"my_losses:{name}", "optimizer": sgd, "schedule": {"kind": "constant"}}
    config = validate(settings | changes | {"clip_norm": None})
    train(config, tmp_path / "run", backend="torch")
    task = build_task(config)
    alone = getattr(my_losses, name)(my_losses.build())
    with torch.no_grad():
        for it, value in task.loss.named_parameters():
            alone.get_parameter(it).copy_(value)
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.05)
    updates = [record for record in records(tmp_path / "run") if "loss" in record]
    assert len(updates) == config.steps
    order = task.order(config)
    for number, record in enumerate(updates):
        inputs = task.splits["train"].batch(order[number]).inputs
        loss = alone(**{it: torch.from_numpy(own) for it, own in inputs.items()})
        assert record["loss"] == pytest.approx(loss.item(), rel=1e-5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


TEACHER = {"teacher.weight", "teacher.bias"}
ALL = OWN | TEACHER | {f"model.{layer}.{name}" for layer in (0, 2) for name in ("weight", "bias")}
ADAPTERS = {"model.0.lora_a", "model.0.lora_b"}
PATTERNS = {
    "nothing": ({}, ALL),
    "freeze": ({"freeze": ["objective.teacher"]}, ALL - TEACHER),
    "freeze with a star": ({"freeze": ["objective.*.bias"]}, ALL - {"mix.bias", "teacher.bias"}),
    "freeze of both": ({"freeze": ["bias"]}, {name for name in ALL if "bias" not in name}),
    "train of both": (
        {"train": ["2.weight", "objective.mix", "objective.log_width"]},
        {"model.2.weight"} | OWN,
    ),
    "train of the objective": ({"train": ["objective.log_width"]}, {"log_width"}),
    "without the prefix": ({"train": ["log_width"]}, {"log_width"}),
    "train of the model": ({"train": ["2.weight"]}, {"model.2.weight"}),
    "both keys": (
        {"train": ["2.", "objective.*"], "freeze": ["objective.teacher"]},
        OWN | {"model.2.weight", "model.2.bias"},
    ),
    "adapter": ({"adapter": {"rank": 1, "targets": ["0"]}}, ADAPTERS | OWN | TEACHER),
    "adapter and freeze": (
        {"adapter": {"rank": 1, "targets": ["0"]}, "freeze": ["objective.teacher"]},
        ADAPTERS | OWN,
    ),
}


@pytest.mark.parametrize("case", PATTERNS)
def test_patterns_name_them_as_those_of_the_model(settings, case):
    changes, wanted = PATTERNS[case]
    task = build_task(config := validate(settings | changes | {"objective": "my_losses:Taught"}))
    for backend in ("mlx", "torch"):
        assert make_step(backend, task, config).trainable().keys() == wanted
    assert {name for name, it in task.parameters().items() if it.trainable} == wanted


@pytest.mark.parametrize("backend", ["mlx", "torch"])
def test_what_is_frozen_stays_and_the_rest_trains(settings, tmp_path, backend):
    changes = {
        "objective": "my_losses:Taught",
        "freeze": ["objective.teacher", "objective.mix.bias"],
    }
    config = validate(settings | changes)
    first = build_task(config).loss.state_dict()
    result = train(config, tmp_path / "run", backend=backend)
    assert load_file(tmp_path / "run" / FILE).keys() == {"log_width", "mix.weight"}
    assert result.best["error"] < result.before["error"]
    import my_losses

    judged = my_losses.Mixed(my_losses.build())
    state = load_file(tmp_path / "run" / "model.safetensors")
    state = {f"model.{name}": torch.from_numpy(it) for name, it in state.items()}
    kept = load_file(tmp_path / "run" / FILE)
    state |= {"mix.weight": torch.from_numpy(kept["mix.weight"]), "mix.bias": first["mix.bias"]}
    judged.load_state_dict(state)
    found = my_losses.error(
        lambda inputs: judged(torch.from_numpy(inputs["x"])).detach().numpy(),
        my_losses.Points("validation"),
    )
    assert found == pytest.approx(result.best["error"], rel=1e-5)


UNMATCHED = {
    "a typo": ({"freeze": ["objective.log_widht"]}, "did you mean objective.log_width?"),
    "a group": (
        {"optimizer": {"groups": [{"match": ["objective.mx"], "weight_decay": 0}]}},
        "did you mean objective.mix?",
    ),
    "of none": (
        {"objective": "my_losses:Plain", "metric": None, "train": ["objective.mix"]},
        "*objective.mix*: there are *.weight, *.bias",
    ),
    "what its code freezes": (
        {"objective": "my_losses:Steady", "train": ["2.", "objective.steady"]},
        "objective.steady",
    ),
}


@pytest.mark.parametrize("case", UNMATCHED)
def test_a_pattern_that_means_nothing_is_refused_with_the_nearest_name(settings, case):
    changes, told = UNMATCHED[case]
    config = validate(settings | changes)
    with pytest.raises(MismatchError) as caught:
        make_step("torch", build_task(config), config)
    assert told in " ".join(caught.value.problems)


def test_a_group_names_them_as_the_other_patterns_do(settings):
    groups = [{"match": ["objective.log_width"], "learning_rate": 1e-9}]
    config = validate(settings | {"optimizer": {"learning_rate": 0.05, "groups": groups}})
    task = build_task(config)
    step, first = make_step("torch", task, config), task.loss.log_width.item()
    step.advance([task.splits["train"].batch(range(8))], 0.05)()
    assert step.trainable()["log_width"] == pytest.approx(first, abs=1e-6)
    assert not np.allclose(step.trainable()["mix.weight"], task.loss.mix.weight.detach(), atol=1e-3)


def test_a_user_is_told_which_stay_because_train_does_not_name_them(settings):
    (note,) = build_task(validate(settings | {"train": ["2.weight"]})).notes()
    assert note.startswith("objective: log_width, mix.weight, mix.bias of its own stay as they are")
    assert "objective.log_width" in note


@pytest.mark.parametrize("always", [True, False])
def test_parameters_that_the_objective_changes_itself_are_refused(settings, always):
    """No checkpoint would hold them, and in 16 bits what is changed is a copy."""
    objective = {"name": "my_losses:Following", "options": {"always": always}}
    config = validate(settings | {"objective": objective, "dtype": "bfloat16"})
    with pytest.raises(
        UnsupportedError, match=r"changes the parameter teacher\.weight .* be buffers"
    ):
        make_step("torch", build_task(config), config)
