"""Losses with a second, frozen model: a teacher, or the model as it was."""

from __future__ import annotations

import copy
import textwrap

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import weighbridge
from weighbridge.errors import BadInputError
from weighbridge.trainers.config import validate
from weighbridge.trainers.data.batches import Batch
from weighbridge.trainers.objectives.base import make_objective
from weighbridge.trainers.runs.loop import make_step, train
from weighbridge.trainers.tasks import build_task

CODE = """
import numpy as np
import torch
from torch import nn


class Reader(nn.Module):
    '''A language model of one word before.'''

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 6)
        self.head = nn.Linear(6, 20)

    def forward(self, input_ids, attention_mask):
        return self.head(torch.tanh(self.words(input_ids)))


def teacher():
    torch.manual_seed(7)
    return Reader()


def student():
    torch.manual_seed(8)
    return Reader()


class Words:
    '''Words that go up.'''

    def __init__(self, split):
        self.first = np.random.default_rng(len(split)).integers(6, 14, 24)

    def __len__(self):
        return len(self.first)

    def batch(self, rows):
        ids = self.first[rows][:, None] + np.arange(5)
        return {"ids": ids, "mask": np.ones_like(ids), "labels": ids}


class Answers:
    '''Chosen answers go up, rejected ones go down.'''

    def __init__(self, split):
        self.first = np.random.default_rng(len(split)).integers(6, 14, 24)

    def __len__(self):
        return len(self.first)

    def batch(self, rows):
        up = self.first[rows][:, None] + np.arange(5)
        down = self.first[rows][:, None] - np.arange(5)
        found = {}
        for name, ids in {"chosen": up, "rejected": down}.items():
            labels = np.where(np.arange(5) < 1, -100, ids)
            parts = {"ids": ids, "mask": np.ones_like(ids), "labels": labels}
            found |= {f"{name}_{part}": it for part, it in parts.items()}
        return found
"""


@pytest.fixture
def readers(tmp_path, monkeypatch):
    """Return the module with the models and the data of the tests."""
    (tmp_path / "readers.py").write_text(textwrap.dedent(CODE))
    monkeypatch.syspath_prepend(tmp_path)
    import importlib
    import sys

    sys.modules.pop("readers", None)
    return importlib.import_module("readers")


def tensors(batch):
    return {name: torch.from_numpy(array) for name, array in batch.items()}


def logits(model, batch, prefix=""):
    model = copy.deepcopy(model).double()
    fed = tensors(batch)
    return model(fed[f"{prefix}ids"], fed[f"{prefix}mask"]).detach()


def how(**changes):
    return {
        "teacher": "readers:teacher",
        "compare": "kl",
        "temperature": 2.0,
        "hard": 0.0,
    } | changes


@pytest.mark.parametrize("compare", ["kl", "mse"])
def test_distillation_of_a_language_model_counts_the_labels(compare, both, agree, texts, readers):
    batch, model = texts(vocabulary=20), readers.student()
    sides = both(
        "distillation", model, batch, texts(3, 6, 1, 20), **how(compare=compare, hard=0.25)
    )
    agree(sides)
    counts = torch.from_numpy(batch["labels"][:, 1:] != -100)
    ours, theirs = (logits(it, batch)[:, :-1][counts] for it in (model, readers.teacher()))
    soft = functional.mse_loss(ours, theirs)
    if compare == "kl":
        parts = [functional.log_softmax(it / 2, -1) for it in (ours, theirs)]
        soft = 4 * functional.kl_div(*parts, reduction="batchmean", log_target=True)
    hard = functional.cross_entropy(ours, torch.from_numpy(batch["labels"][:, 1:])[counts])
    assert sides.double.loss == pytest.approx((0.25 * hard + 0.75 * soft).item(), rel=1e-6)
    assert not any(
        name.startswith("teacher.") and it.any() for name, it in sides.mlx.gradients.items()
    )
    weight = make_objective("distillation", how()).weight(Batch(batch, 4, 0))
    assert weight == counts.sum()


def test_distillation_of_a_classifier_is_a_mean_over_examples(both, agree, tmp_path, monkeypatch):
    (tmp_path / "planes.py").write_text(
        "from torch import nn, manual_seed\ndef big():\n    manual_seed(0)\n    return nn.Linear(3, 4)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    generator = np.random.default_rng(0)
    batch = {
        "series": generator.standard_normal((5, 3)).astype(np.float32),
        "labels": np.arange(5) % 4,
    }
    sides = both("distillation", nn.Linear(3, 4), batch, **how(teacher="planes:big", hard=0.5))
    agree(sides)
    assert make_objective("distillation", how()).weight(Batch(batch, 5, 0)) == 5


def test_a_teacher_with_another_head_is_refused(tmp_path, monkeypatch):
    """One logit of a teacher would be compared with every one of the model's, without a word."""
    code = "import torch\n\ndef small():\n    return torch.nn.Linear(3, 1)\n"
    (tmp_path / "small_planes.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    objective = {"name": "distillation", "teacher": "small_planes:small"}
    rows = {"input": np.ones((16, 3), np.float32)}
    with pytest.raises(BadInputError, match=r"shape \(batch, 1\), the model \(batch, 4\)"):
        weighbridge.train(nn.Linear(3, 4), objective, rows, {"steps": 1}, target=tmp_path / "run")


def test_dpo_is_its_formula(both, agree, readers):
    """The reference is the model before it moved; at the start the loss is log 2 whatever it says."""
    batch, model = readers.Answers("train").batch(list(range(4))), readers.student()
    assert both("dpo", model, batch, beta=0.3).double.loss == pytest.approx(np.log(2))
    objective = make_objective("dpo", {"beta": 0.3})
    module = objective.make_loss(model).double()
    with torch.no_grad():
        for value in module.model.parameters():
            value.add_(torch.randn(value.shape, generator=torch.manual_seed(1)) * 0.3)

    def likely(model, side):
        found = logits(model, batch, f"{side}_")[:, :-1].log_softmax(-1)
        labels = torch.from_numpy(batch[f"{side}_labels"][:, 1:])
        return found.gather(-1, labels.unsqueeze(-1)).sum((1, 2))

    gained = {
        side: likely(module.model, side) - likely(module.reference, side)
        for side in ("chosen", "rejected")
    }
    expected = -functional.logsigmoid(0.3 * (gained["chosen"] - gained["rejected"])).mean()
    assert module(**tensors(batch)).item() == pytest.approx(expected.item(), rel=1e-9)


@pytest.mark.parametrize("backend", ["mlx", "torch"])
@pytest.mark.parametrize("adapter", [None, {"rank": 2, "targets": ["head"]}])
def test_preferences_are_learned_against_the_base(backend, adapter, readers, tmp_path):
    settings = {"model": "readers:student", "data": "readers:Answers", "objective": "dpo"}
    settings |= {"batch_size": 8, "steps": 10, "validate_every": 10, "checkpoint_every": 10}
    settings |= {"optimizer": {"learning_rate": 0.05}, "adapter": adapter}
    config = validate(settings)
    result = train(config, tmp_path / "run", backend=backend)
    assert result.before["loss"] == pytest.approx(np.log(2), rel=1e-5)
    assert result.best["reward_accuracy"] > 0.9 > result.before["reward_accuracy"]


def test_the_first_gradients_of_dpo_are_the_same_in_both(readers, agree):
    settings = {"model": "readers:student", "data": "readers:Answers", "objective": "dpo"}
    settings |= {"adapter": {"rank": 2, "targets": ["head"]}}
    task = build_task(config := validate(settings))
    batch = task.splits["train"].batch(range(6))
    found = []
    for backend in ("mlx", "torch"):
        step = make_step(backend, task, config)
        generator = np.random.default_rng(3)
        step.assign(
            {name: generator.normal(size=it.shape) for name, it in step.trainable().items()}
        )
        found.append(step.gradients(batch))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    for name, gradient in found[1][1].items():
        assert np.allclose(found[0][1][name], gradient, atol=1e-5)


def test_the_reference_shares_what_is_frozen(readers):
    settings = {"model": "readers:student", "data": "readers:Answers", "objective": "dpo"}
    settings |= {"adapter": {"rank": 2, "targets": ["head"]}, "train": ["head.bias"]}
    task = build_task(config := validate(settings))
    tensors = dict(make_step("torch", task, config)._loss.named_parameters())
    held = make_step("mlx", task, config).model._wiring.locations
    for name in ("words.weight", "head.weight"):
        assert tensors[f"reference.{name}"].data_ptr() == tensors[f"model.{name}"].data_ptr()
        assert f"model.{name}" in held
        assert f"reference.{name}" not in held
    assert tensors["reference.head.bias"].data_ptr() != tensors["model.head.bias"].data_ptr()


@pytest.mark.parametrize("objective", ["distillation", "dpo"])
def test_what_does_not_change_counts_the_second_model(objective, readers, monkeypatch):
    from weighbridge.trainers.objectives import distillation

    settings = {"model": "readers:student", "objective": {"name": objective}}
    settings |= {"data": "readers:Answers" if objective == "dpo" else "readers:Words"}
    if objective == "distillation":
        settings["objective"] |= {"teacher": "readers:teacher"}

    def frozen():
        distillation._opened.cache_clear()
        return build_task(validate(settings)).frozen()

    before = frozen()
    assert frozen() == before
    make = readers.teacher

    def other():
        module = make()
        module.head.bias.data += 1
        return module

    monkeypatch.setattr(readers, "teacher", other)
    assert (frozen() == before) is (objective == "dpo")
