"""Training what is in memory: a module, an objective and data that have no names."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import weighbridge
from weighbridge.errors import BadInputError, MismatchError, UnsupportedError, UsersCodeError
from weighbridge.trainers.live import live
from weighbridge.trainers.runs.loop import make_step
from weighbridge.trainers.tasks import build_task

SHORT = {"steps": 4, "batch_size": 8, "validate_every": 2, "optimizer": {"learning_rate": 0.05}}
BACKENDS = ["mlx", "torch"]


class Distance(torch.nn.Module):
    """The mean absolute error, times a factor."""

    def __init__(self, model, factor=2.0):
        super().__init__()
        self.model, self.factor = model, factor

    def forward(self, x, y):
        return self.factor * (self.model(x) - y).abs().mean()


class Points:
    """Points of a plane and their heights."""

    def __init__(self, count, seed):
        self.x = np.random.default_rng(seed).normal(size=(count, 2)).astype(np.float32)

    def __len__(self):
        return len(self.x)

    def batch(self, rows):
        return {"x": self.x[rows], "y": self.x[rows].sum(1, keepdims=True) + 3}


def module():
    torch.manual_seed(0)
    return torch.nn.Linear(2, 1)


def train(objective, data, folder, given=None, backend="torch", **changes):
    given = given or module()
    options = {"target": folder, "backend": backend}
    return given, weighbridge.train(given, objective, data, SHORT | changes, **options)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_live_module_gets_the_best_parameters(backend, tmp_path):
    data = {"train": Points(40, 0), "validation": Points(9, 1)}
    trained, result = train(Distance, data, tmp_path / "run", backend=backend)
    assert result.best["loss"] < result.before["loss"]
    with torch.no_grad():
        batch = {
            name: torch.from_numpy(it) for name, it in data["validation"].batch(range(9)).items()
        }
        assert float(Distance(trained)(**batch)) == pytest.approx(result.best["loss"], rel=1e-5)


def test_a_class_an_instance_and_arrays_say_the_same(tmp_path):
    data = {"train": Points(40, 0), "validation": Points(9, 1)}
    arrays = {name: points.batch(range(len(points))) for name, points in data.items()}
    first, _ = train(Distance, data, tmp_path / "class")
    own = module()
    second, _ = train(Distance(own), arrays, tmp_path / "instance", own)
    assert torch.equal(first.weight, second.weight)
    assert second is own


def test_one_dataset_is_divided(tmp_path):
    _, result = train(Distance, Points(50, 0), tmp_path / "run")
    assert {name: it["examples"] for name, it in result.data.items()} == {
        "train": 45,
        "validation": 5,
    }


def test_a_named_objective_with_settings_of_a_recipe(tmp_path):
    rows = {"input": np.ones((20, 2), np.float32), "target": np.ones((20, 1), np.float32)}
    trained, result = train("regression", rows, tmp_path / "run", freeze=["bias"])
    assert torch.equal(trained.bias, module().bias)
    assert result.best["loss"] < result.before["loss"]


def test_a_live_run_is_resumed_with_the_same_things(tmp_path):
    straight, _ = train(Distance, Points(50, 0), tmp_path / "run")
    again = module()
    weighbridge.train(
        again, Distance, Points(50, 0), SHORT, target=tmp_path / "run", backend="torch", resume=True
    )
    assert torch.equal(straight.weight, again.weight)
    with pytest.raises(MismatchError, match="data: "):
        weighbridge.train(
            module(),
            *(Distance, Points(50, 7), SHORT),
            target=tmp_path / "run",
            backend="torch",
            resume=True,
        )


def test_a_run_goes_on_in_its_own_backend_where_none_is_named(tmp_path):
    straight, _ = train(Distance, Points(50, 0), tmp_path / "run")  # in PyTorch
    again = module()
    weighbridge.train(again, Distance, Points(50, 0), SHORT, target=tmp_path / "run", resume=True)
    assert torch.equal(straight.weight, again.weight)
    with pytest.raises(MismatchError) as caught:
        weighbridge.train(
            *(module(), Distance, Points(50, 0), SHORT),
            target=tmp_path / "run",
            backend="mlx",
            resume=True,
        )
    assert caught.value.problems == ("backend: torch in the checkpoint, mlx now",)


def test_a_metric_in_memory_chooses(tmp_path):
    def worst(predict, dataset):
        batch = dataset.batch(range(len(dataset)))
        return float(np.abs(predict({"x": batch["x"]}) - batch["y"]).max())

    judged = type("Judged", (Distance,), {"evaluated": Found})
    _, result = train(judged, Points(50, 0), tmp_path / "run", metric=worst, higher_is_better=False)
    assert result.best["worst"] < result.before["worst"]


class Found(Distance):
    def forward(self, x):
        return self.model(x)


def test_what_is_no_module_of_pytorch_is_refused(tmp_path):
    with pytest.raises(
        BadInputError, match=r"module is an object of type int; give a torch\.nn\.Module"
    ):
        weighbridge.train(3, Distance, Points(9, 0), target=tmp_path / "run")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"train": Points(9, 0)}, "data has no split validation"),
        (Points(1, 0), "data has 1 examples"),
        ({"x": np.ones((3, 2)), "y": np.ones(4)}, "one row for each example: x has 3, y has 4"),
        ({"x": np.ones((3, 2)), "y": 1.0}, "x has 3, y has none"),
        (3, "data has no method __len__"),
    ],
)
def test_data_that_is_none_is_refused(data, says, tmp_path):
    with pytest.raises(BadInputError, match=says):
        train(Distance, data, tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_an_instance_needs_its_model(tmp_path):
    with pytest.raises(BadInputError, match="L1Loss has no attribute model"):
        train(torch.nn.L1Loss(), Points(9, 0), tmp_path / "run")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_module_of_16_bits_is_trained_in_float32(dtype):
    data = {"train": Points(8, 0), "validation": Points(8, 0)}
    found = []
    for given in (module().to(dtype), module().to(dtype).float()):
        config, there = live(given, Distance, data, SHORT)
        task = build_task(config, live=there)
        for backend in BACKENDS:
            step = make_step(backend, task, config)
            step.advance([task.splits["train"].batch(range(8))], 1e-4)()
            found.append(step.trainable())
    for name, weight in found[0].items():
        assert weight.dtype == np.float32
        for other in found[1:]:
            np.testing.assert_allclose(other[name], weight, rtol=1e-6)


class Examples(torch.utils.data.Dataset):
    """Examples one by one, in the dtype in which numpy makes numbers."""

    def __len__(self):
        return 24

    def __getitem__(self, row):
        x = np.random.default_rng(row).normal(size=2)
        return {"x": x, "y": x.sum(keepdims=True)}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("double", [False, True])
def test_numbers_in_float64_are_trained_on_in_float32(double, backend, tmp_path):
    rows = Examples()
    arrays = {key: np.stack([rows[it][key] for it in range(24)]) for key in ("x", "y")}
    given = module().double() if double else module()
    _, one = train(Distance, arrays, tmp_path / "one", given, backend)
    _, other = train(Distance, rows, tmp_path / "other", module(), backend)
    narrow = {key: it.astype(np.float32) for key, it in arrays.items()}
    _, wanted = train(Distance, narrow, tmp_path / "wanted", module(), backend)
    assert one.best == other.best == wanted.best


@pytest.mark.parametrize("objective", [Distance, "regression"], ids=["class", "name"])
def test_tuples_are_read_in_the_order_of_the_inputs(objective, tmp_path):
    x = torch.tensor(Points(24, 0).x)
    rows = torch.utils.data.TensorDataset(x, x.sum(1, keepdims=True))
    _, one = train(objective, rows, tmp_path / "one")
    names = ("x", "y") if objective is Distance else ("input", "target")
    arrays = dict(zip(names, map(np.asarray, rows.tensors), strict=True))
    _, wanted = train(objective, arrays, tmp_path / "wanted")
    assert one.best == wanted.best
    parts = torch.utils.data.random_split(rows, [20, 4])
    train(objective, dict(zip(("train", "validation"), parts, strict=True)), tmp_path / "parts")


@pytest.mark.parametrize(
    ("count", "objective", "message"),
    [
        (3, Distance, r"a tuple of .*, or a tuple of them: \(x, y\)"),
        (3, "regression", r"a tuple of .*, or a tuple of them: \(input, target\)"),
        (2, "distillation", r"a tuple of .*, or a tuple of them: \(input\)"),
        (0, Distance, "DataLoader.*give its dataset"),
    ],
)
def test_what_leaves_no_one_way_to_read_a_tuple_is_refused(count, objective, message, tmp_path):
    data = torch.utils.data.TensorDataset(*[torch.zeros(9, 2)] * (count or 2))
    data = data if count else torch.utils.data.DataLoader(data)
    with pytest.raises(UsersCodeError, match=message):
        train(objective, data, tmp_path / "run")


class Halves(Distance):
    """Brings the two halves of a batch together, and takes no single example."""

    def forward(self, x, y):
        one, other = self.model(x).chunk(2)
        return super().forward(x, y) + (one - other).square().mean()


class Counting(torch.nn.Linear):
    def __init__(self):
        super().__init__(2, 1)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        return super().forward(x)


def test_looking_at_the_data_takes_losses_of_whole_batches_and_leaves_buffers_as_they_are():
    data = {"train": Points(8, 0), "validation": Points(8, 0)}
    config, there = live(Counting(), Halves, data, SHORT)
    assert build_task(config, live=there).module.calls == 0


class Watched(Distance):
    """Adds what the model finds, which a hook puts aside."""

    found = None

    def forward(self, x, y):
        error = super().forward(x, y)
        return error + self.found.square().mean()

    def put(self, _module, _inputs, found):
        self.found = found


def by_closure(objective):
    objective.model.register_forward_hook(
        lambda _module, _inputs, found: setattr(objective, "found", found)
    )


def by_method(objective):
    objective.model.register_forward_hook(objective.put)


def tripled(objective):
    objective.found = torch.zeros(1)
    objective.register_forward_hook(lambda _module, _inputs, loss: 3 * loss)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("hook", [by_closure, by_method, tripled])
def test_forward_hooks_of_an_instance_act(hook, backend, tmp_path):
    own, data = module(), Points(20, 0)
    objective = Watched(own)
    hook(objective)
    rows = {name: torch.from_numpy(array) for name, array in data.batch(range(20)).items()}
    with torch.no_grad():
        wanted = objective(**rows).item()
    splits = {"train": data, "validation": data}
    _, result = train(objective, splits, tmp_path / "run", own, backend, steps=1)
    assert result.before["loss"] == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
@pytest.mark.parametrize("instance", [False, True])
def test_hooks_of_parameters_are_refused_by_name(register, instance, backend, tmp_path):
    own = module()
    getattr(own.weight, register)(double)
    objective = Distance(own) if instance else Distance
    with pytest.raises(UnsupportedError, match="weight: double"):
        train(objective, Points(20, 0), tmp_path / "run", own, backend)
    assert not (tmp_path / "run").exists()


def double(gradient):
    return 2 * gradient


def test_a_class_that_gives_parameters_hooks_is_refused(tmp_path):
    class Doubled(Distance):
        def __init__(self, model):
            super().__init__(model)
            model.weight.register_hook(double)

    with pytest.raises(UnsupportedError, match=r"model\.weight: double"):
        train(Doubled, Points(20, 0), tmp_path / "run")


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_a_module_that_cannot_be_copied_is_refused_in_one_line(tmp_path):
    own = torch.nn.utils.weight_norm(module())
    with pytest.raises(UsersCodeError, match="Linear cannot be copied"):
        train(Distance, Points(20, 0), tmp_path / "run", own)


def test_buffers_of_a_parametrization_train_in_both_backends(tmp_path):
    losses = []
    for backend in BACKENDS:
        own = torch.nn.utils.parametrizations.spectral_norm(module())
        _, result = train(Distance, Points(40, 0), tmp_path / backend, own, backend)
        losses.append(result.best["loss"])
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_a_loss_that_nothing_changes_is_refused_in_one_line_and_not_by_every_parameter(tmp_path):
    class Alone(Distance):
        def forward(self, x, y):
            scores = self.model(x) @ y.mT  # of one example against itself
            return torch.nn.functional.cross_entropy(scores, torch.arange(len(x)))

    with pytest.raises(MismatchError, match="batch_size=2") as caught:
        train(Alone, Points(20, 0), tmp_path / "run", batch_size=1)
    assert len(caught.value.problems) == 1
