"""What a user may name in a configuration: an objective, data and a metric of their own."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest
import torch

from weighbridge.errors import BadInputError, DivergedError, MismatchError, UsersCodeError
from weighbridge.trainers.config import validate
from weighbridge.trainers.preflight import DETACHED, PreflightError
from weighbridge.trainers.runs.loop import make_step, train
from weighbridge.trainers.tasks import build_task

CODE = """
import numpy as np
import torch
from torch import nn


class Line(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.layer = nn.Linear(width, 1)

    def forward(self, points):
        return self.layer(points)[:, 0]


def build(width=4):
    torch.manual_seed(0)
    return Line(width)


class Quantile(nn.Module):
    '''Pinball loss, weighted by example.'''

    def __init__(self, model, share=0.5):
        super().__init__()
        self.model, self.share = model, share

    def forward(self, points, wanted, weights):
        error = wanted - self.model(points)
        loss = torch.maximum(self.share * error, (self.share - 1) * error)
        return (weights * loss).sum() / weights.sum()

    weight = staticmethod(lambda batch: float(batch.inputs["weights"].sum()))


class Predicted(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, points):
        return self.model(points)


class Bare(Quantile):
    def __init__(self, model):
        super().__init__(None)
        self.inner = model


class Judged(Quantile):
    evaluated = Predicted
    evaluated_dynamic = {"points": {0: "batch"}}


class Points:
    def __init__(self, split, path=None, width=4, count=20):
        generator = np.random.default_rng(["validation", "train", "test"].index(split))
        self.points = generator.standard_normal((count, width)).astype(np.float32)
        self.wanted = self.points.sum(1).astype(np.float32)
        self.weights = generator.uniform(0.5, 2, count).astype(np.float32)

    def __len__(self):
        return len(self.points)

    def batch(self, rows):
        return {name: getattr(self, name)[rows] for name in ("points", "wanted", "weights")}


def within(predict, dataset):
    '''Return the share of points within 2 of what is wanted.'''
    batch = dataset.batch(range(len(dataset))).inputs
    return np.mean(np.abs(predict({"points": batch["points"]}) - batch["wanted"]) < 2)


def faulty(predict, dataset):
    raise ValueError("no such thing")


def named(predict, dataset):
    '''Return the same as ``within``, of what the class holds and of its batches by name.'''
    batch = dataset.batch(range(len(dataset)))
    return np.mean(np.abs(predict({"points": batch["points"]}) - dataset.wanted) < 2)


def wordy(predict, dataset):
    return "good"


def empty(predict, dataset):
    return float("nan")


class OneByOne(torch.utils.data.Dataset):
    def __init__(self, split):
        self.points = Points(split)

    def __len__(self):
        return len(self.points)

    def __getitem__(self, row):
        return {name: array[0] for name, array in self.points.batch([row]).items()}


class Pairs(OneByOne):
    def __getitem__(self, row):
        return row, row


class Vector(Quantile):
    def forward(self, points, wanted, weights):
        return (wanted - self.model(points)).square()


class Several(Quantile):
    def forward(self, points, wanted, weights):
        return {"loss": super().forward(points, wanted, weights)}


class Detached(Quantile):
    def forward(self, points, wanted, weights):
        return super().forward(points, wanted, weights).detach()


class Plain:
    def __init__(self, model):
        self.model = model


def function(model, points, wanted, weights):
    return (model(points) - wanted).mean()
"""


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """Return a configuration that names nothing but code of a user's."""
    (tmp_path / "my_doors.py").write_text(textwrap.dedent(CODE))
    monkeypatch.syspath_prepend(tmp_path)
    return {
        "model": "my_doors:build",
        "data": "my_doors:Points",
        "objective": "my_doors:Judged",
        "batch_size": 4,
        "steps": 40,
        "validate_every": 20,
        "checkpoint_every": 20,
        "optimizer": {"learning_rate": 0.05},
    }


@pytest.mark.parametrize("backend", ["mlx", "torch"])
def test_a_users_objective_data_and_metric_train(settings, tmp_path, backend):
    config = validate({**settings, "metric": "my_doors:within"})
    result = train(config, tmp_path / "run", backend=backend)
    assert result.metric == "within"
    assert result.best["within"] > result.before["within"]


def test_a_metric_has_what_the_users_class_holds_and_its_batches_by_name(settings, tmp_path):
    found = [
        train(
            validate({**settings, "metric": f"my_doors:{name}"}), tmp_path / name, backend="torch"
        )
        for name in ("within", "named")
    ]
    assert found[0].best["within"] == found[1].best["named"]


def test_a_dataset_of_pytorch_is_data(settings):
    one, other = (
        build_task(validate({**settings, "data": f"my_doors:{name}"})).splits["train"]
        for name in ("OneByOne", "Points")
    )
    assert one.digest == other.digest


def test_a_metric_that_is_never_a_number_chooses_no_weights(settings, tmp_path):
    config = validate({**settings, "metric": "my_doors:empty", "steps": 2})
    with pytest.raises(DivergedError, match="empty was not finite in any validation"):
        train(config, tmp_path / "run", backend="torch")
    assert not (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.parametrize("backend", ["mlx", "torch"])
def test_a_loss_that_depends_on_nothing_is_refused_in_one_line(settings, tmp_path, backend):
    with pytest.raises(PreflightError) as caught:
        train(
            validate({**settings, "objective": "my_doors:Detached"}),
            tmp_path / "run",
            backend=backend,
        )
    assert caught.value.problems == (DETACHED,)


def test_options_reach_the_model_the_objective_and_the_data(settings):
    config = validate(
        settings
        | {"model_options": {"width": 3}}
        | {"data": {"kind": "my_doors:Points", "options": {"width": 3, "count": 9}}}
        | {"objective": {"name": "my_doors:Quantile", "options": {"share": 0.9}}}
    )
    task = build_task(config)
    assert (task.module.layer.in_features, task.loss.share, len(task.splits["train"])) == (
        3,
        0.9,
        9,
    )


def test_the_users_weight_counts_in_accumulation(settings):
    task = build_task(config := validate(settings | {"clip_norm": None}))
    data = task.splits["train"]
    batches = [data.batch(range(3)), data.batch(range(3, 10))]
    assert task.objective.weight(batches[0]) == pytest.approx(batches[0].inputs["weights"].sum())
    assert make_step("torch", task, config).loss(data.batch(range(10)).inputs) > 0


def test_the_interval_of_the_test_split_says_which_figure_it_is_of(settings, tmp_path):
    (tmp_path / "data").touch()
    config = validate(
        settings
        | {"metric": "my_doors:within", "steps": 2}
        | {
            "data": {
                "kind": "my_doors:Points",
                "train": "data",
                "validation": "data",
                "test": "data",
            }
        }
    )
    result = train(config, tmp_path / "run", backend="torch")
    change = result.test["difference"]
    before, after = (result.test[when]["loss"] for when in ("before", "after"))
    assert (change["of"], change["count"]) == ("loss", 5)
    assert change["difference"] == pytest.approx(after - before)
    assert f"loss {before:.4f} -> {after:.4f}: change {after - before:+.4f}" in result.summary()


def test_a_single_batch_has_no_interval(settings, tmp_path):
    (tmp_path / "data").touch()
    data = {"kind": "my_doors:Points", "train": "data", "validation": "data", "test": "data"}
    config = validate(settings | {"data": data, "steps": 2, "batch_size": 20})
    result = train(config, tmp_path / "run", backend="torch")
    assert "difference" not in result.test
    assert "test loss" in result.summary()


@pytest.mark.parametrize("metric", ["perplexity", "mae", "loss", "r2"])
def test_of_figures_of_errors_the_lower_is_better(settings, metric, monkeypatch):
    import my_doors

    monkeypatch.setattr(my_doors.Judged, "measure", staticmethod(dict), raising=False)
    task = build_task(validate(settings | {"metric": metric}))
    assert task.objective.higher_is_better is (metric == "r2")


def test_the_objectives_own_figure_is_better_where_the_objective_says(settings, monkeypatch):
    import my_doors

    monkeypatch.setattr(my_doors.Judged, "metric", "distance", raising=False)
    assert not build_task(validate(settings | {"metric": "distance"})).objective.higher_is_better


REFUSED = {
    "objective": ("my_doors:Nothing", UsersCodeError, "has no attribute 'Nothing'"),
    "objective.model": ("my_doors:Bare", UsersCodeError, "my_doors:Bare has to keep the model"),
    "data": ("my_nothing:Points", UsersCodeError, "No module named 'my_nothing'"),
    "data.files": (
        {"kind": "my_doors:Points", "train": "x"},
        BadInputError,
        "data.validation is missing: other splits of my_doors:Points have files",
    ),
    "metric": ("recall", BadInputError, "metric recall is not measured; there are loss"),
    "objective.vector": (
        "my_doors:Vector",
        UsersCodeError,
        r"Vector returns float32 of shape \[1\]",
    ),
    "objective.several": (
        "my_doors:Several",
        UsersCodeError,
        "Several returns an object of type dict",
    ),
    "objective.plain": (
        "my_doors:Plain",
        UsersCodeError,
        "my_doors:Plain makes an object of type Plain",
    ),
    "objective.function": (
        "my_doors:function",
        UsersCodeError,
        "cannot be called: missing .* 'points'",
    ),
    "objective.options": (
        {"name": "my_doors:Judged", "options": {"shaer": 0.5}},
        UsersCodeError,
        "my_doors:Judged cannot be called: got an unexpected keyword argument 'shaer'",
    ),
    "objective.number": ("my_doors:np", UsersCodeError, "my_doors:np is an object of type module"),
    "metric.wordy": (
        "my_doors:wordy",
        UsersCodeError,
        "my_doors:wordy returns an object of type str",
    ),
    "metric.number": ("my_doors:np", UsersCodeError, "my_doors:np is an object of type module"),
    "data.pairs": ("my_doors:Pairs", UsersCodeError, r"my_doors:Pairs\[0\] is a tuple of int, int"),
    "data.line": ("my_doors:Line", UsersCodeError, "unexpected keyword argument 'split'"),
}


@pytest.mark.parametrize("key", REFUSED)
def test_what_is_not_there_is_refused_in_one_line(settings, tmp_path, key):
    value, kind, message = REFUSED[key]
    with pytest.raises(kind, match=message):
        train(
            validate(settings | {key.partition(".")[0]: value}), tmp_path / "run", backend="torch"
        )
    assert not (tmp_path / "run").exists()


OBJECTIVES = {
    "causal_lm": "there are loss, perplexity",
    "classification": "there are loss, accuracy, .*, matthews",
    "contrastive": "there are loss, p@1, mrr, r@10",
    "dpo": "there are loss, reward_accuracy, reward_margin",
    "regression": "there are loss, mae, r2",
    "my_doors:Quantile": "there are loss$",
}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_metric_that_nothing_measures_is_refused_before_model_and_data(settings, objective):
    settings |= {
        "objective": objective,
        "metric": "nothing",
        "model": "no/model",
        "data": "no:Data",
    }
    with pytest.raises(BadInputError, match=f"nothing is not measured; {OBJECTIVES[objective]}"):
        build_task(validate(settings))


class WantsMore(torch.nn.Linear):
    def forward(self, input_ids, attention_mask, speed):
        return super().forward(input_ids * attention_mask * speed)


def test_a_model_that_wants_other_inputs_is_refused_in_one_line(decoder_config):
    config = decoder_config(objective="causal_lm", adapter=None)
    with pytest.raises(
        BadInputError, match=r"cannot take an example of the data, ids .*: .*'speed'"
    ):
        build_task(config, WantsMore(9, 64))


def test_a_run_that_trains_nothing_is_refused(settings):
    with pytest.raises(BadInputError, match="freeze leaves nothing to train"):
        build_task(validate(settings | {"freeze": ["*"]}))


def test_data_that_the_objective_does_not_take_is_refused_by_name(settings):
    config = validate(settings | {"objective": "causal_lm"})
    with pytest.raises(MismatchError) as caught:
        build_task(config)
    assert len(caught.value.problems) == 6


def test_data_without_anything_to_find_is_refused(settings):
    with pytest.raises(MismatchError) as caught:
        build_task(validate(settings | {"objective": "regression"}))
    assert caught.value.problems[0].startswith("labels or target is an input of the objective")


def test_only_a_factory_takes_options(settings, tiny_bert_dir):
    given = {"model": str(tiny_bert_dir), "model_options": {"width": 3}}
    with pytest.raises(BadInputError, match="model_options: only a model that is MODULE:FUNCTION"):
        build_task(validate(settings | given))


def test_parameters_named_by_train_are_the_only_ones_that_train(settings):
    task = build_task(validate(settings | {"train": ["bias"]}))
    trained = [name for name, it in task.parameters().items() if it.trainable]
    assert trained == ["model.layer.bias"]
    assert np.isfinite(make_step("mlx", task, validate(settings)).trainable()[trained[0]]).all()


CALLED = r"a metric is a function that is called with \(predict, dataset\)"
FAULTY = {
    "predictions, labels": ("(predictions.argmax(1) == labels).mean()", "does not run: .*argmax"),
    "labels": ("0.5", "cannot be called: too many positional arguments"),
    "predict, dataset, k": ("0.5", "cannot be called: missing a required argument: 'k'"),
    "predict, data": ("predict(data.points)", "gives predict an object of type ndarray"),
    "predict, the": ("predict({'x': the.points})", "gives predict x; it takes points"),
    "predict, them": ("predict(points=them.points)", "does not run: .*'points'"),
}


@pytest.mark.parametrize("backend", ["mlx", "torch"])
@pytest.mark.parametrize("given", FAULTY)
def test_a_metric_that_cannot_be_used_says_how_one_is_called(settings, tmp_path, given, backend):
    code, message = FAULTY[given]
    name = f"my_metric_{backend}_{[*FAULTY].index(given)}"
    (tmp_path / f"{name}.py").write_text(f"def found({given}):\n    return {code}\n")
    settings |= {"metric": f"{name}:found"}
    with pytest.raises(UsersCodeError, match=f"metric {name}:found {message}.*{CALLED}"):
        train(validate(settings), tmp_path / "run", backend=backend)
