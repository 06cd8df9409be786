"""Losses of labels against transformers' own, torch's in float64, and scikit-learn's figures."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from weighbridge.errors import BadInputError, MismatchError
from weighbridge.trainers.config import validate
from weighbridge.trainers.data.batches import Batch
from weighbridge.trainers.data.classes import class_metrics, label_metrics
from weighbridge.trainers.data.series import Series
from weighbridge.trainers.evaluation import measure_loss, predictions
from weighbridge.trainers.objectives.base import make_objective
from weighbridge.trainers.objectives.chosen import check_labels, taking, try_loss
from weighbridge.trainers.runs.loop import make_step, train
from weighbridge.trainers.tasks import build_task


@pytest.fixture(scope="module")
def decoder():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "vocab_size": 100, "max_position_embeddings": 32}
    return LlamaForCausalLM(LlamaConfig(**sizes, initializer_range=0.4)).eval()


@pytest.fixture(scope="module")
def classifier():
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(1)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "vocab_size": 100, "num_labels": 4}
    return BertForSequenceClassification(BertConfig(**sizes, initializer_range=0.4)).eval()


def tensors(inputs):
    return {name: torch.from_numpy(array) for name, array in inputs.items()}


def test_causal_lm_is_transformers_own_loss_at_every_length(both, agree, texts, decoder):
    batch = texts()
    sides = both("causal_lm", decoder, batch, example=texts(3, 6, 1))
    fed = tensors(batch)
    theirs = decoder(fed["ids"], attention_mask=fed["mask"], labels=fed["labels"]).loss.item()
    assert sides.torch.loss == pytest.approx(theirs, rel=1e-6)
    agree(sides)


def test_masked_lm_is_transformers_own_loss(both, agree, texts):
    from transformers import BertConfig, BertForMaskedLM

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "vocab_size": 100}
    torch.manual_seed(1)
    model = BertForMaskedLM(BertConfig(**sizes, initializer_range=0.4)).eval()
    batch = texts()
    sides = both("masked_lm", model, batch, example=texts(3, 6, 1))
    fed = tensors(batch)
    theirs = model(fed["ids"], attention_mask=fed["mask"], labels=fed["labels"]).loss.item()
    assert sides.torch.loss == pytest.approx(theirs, rel=1e-6)
    agree(sides)


SMALL = {"vocab_size": 100, "d_model": 16, "pad_token_id": 0, "decoder_start_token_id": 0}
HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "init_std": 0.4}
WIDE = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
SEQ2SEQ = {
    "T5": {"d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2},
    "Bart": {**HEADS, **WIDE, "decoder_start_token_id": 2, "max_position_embeddings": 32},
}


@pytest.mark.heavy
@pytest.mark.parametrize("kind", SEQ2SEQ)
def test_seq2seq_lm_is_transformers_own_loss_of_documents_for_queries(both, agree, texts, kind):
    import transformers

    torch.manual_seed(1)
    config = getattr(transformers, f"{kind}Config")(**SMALL | SEQ2SEQ[kind])
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config).eval()
    query, document = texts(4, 9), texts(4, 7, 2)
    batch = pair_of(query, document)
    sides = both("seq2seq_lm", model, batch, example=pair_of(texts(3, 6, 1), texts(3, 5, 3)))
    fed = tensors(batch)
    labels = fed["document_ids"].where(fed["document_mask"] > 0, -100)
    theirs = model(fed["query_ids"], attention_mask=fed["query_mask"], labels=labels).loss.item()
    assert sides.torch.loss == pytest.approx(theirs, rel=1e-6)
    agree(sides)
    weight = make_objective("seq2seq_lm", {}).weight(Batch(batch, 4, 0))
    assert weight == document["mask"].sum()


def pair_of(query, document):
    named = {"query": query, "document": document}
    return {f"{text}_{part}": it[part] for text, it in named.items() for part in ("ids", "mask")}


def test_the_weight_is_the_number_of_terms_of_the_mean(texts, decoder):
    """Ragged batches weighted so have the loss of all of their tokens together."""
    objective = make_objective("causal_lm", {})
    module, batch = objective.make_loss(decoder), texts(6)
    parts = [
        {name: array[rows] for name, array in batch.items()} for rows in (slice(1), slice(1, 6))
    ]
    weights = [objective.weight(Batch(part, 1, 0)) for part in parts]
    losses = [module(**tensors(part)).item() for part in parts]
    assert weights[0] != weights[1]
    whole = module(**tensors(batch)).item()
    assert np.average(losses, weights=weights) == pytest.approx(whole, rel=1e-6)


def test_a_batch_without_labels_has_no_loss_and_no_gradient(both, texts, decoder):
    batch = texts(2)
    batch["labels"][:] = -100
    for side in both("causal_lm", decoder, batch):
        assert side.loss == 0
        assert not any(gradient.any() for gradient in side.gradients.values())


def test_classification_of_texts_is_transformers_own_loss(both, agree, texts, classifier):
    batch = texts() | {"labels": np.array([0, 3, 1, 1])}
    sides = both(
        "classification", classifier, batch, example=texts(3, 6) | {"labels": np.arange(3)}
    )
    fed = tensors(batch)
    theirs = classifier(fed["ids"], attention_mask=fed["mask"], labels=fed["labels"]).loss.item()
    assert sides.torch.loss == pytest.approx(theirs, rel=1e-6)
    agree(sides)


@pytest.mark.parametrize("size", [1.0, 1e4])
def test_several_labels_have_finite_losses_and_gradients(size, both, agree):
    """Logits of up to +-SIZE, right and wrong ones; torch's float64 is the judge."""
    generator = np.random.default_rng(0)
    model = nn.Linear(3, 5)
    with torch.no_grad():
        model.weight.mul_(size)
    labels = generator.integers(0, 2, (6, 5)).astype(np.float32)
    batch = {"series": generator.standard_normal((6, 3)).astype(np.float32), "labels": labels}
    sides = both("classification", model, batch)
    assert np.isfinite(sides.mlx.loss)
    agree(sides)


def test_one_logit_is_class_one_against_class_zero(both, agree):
    generator = np.random.default_rng(0)
    points = generator.standard_normal((5, 3)).astype(np.float32)
    labels = np.array([0, 1, -100, 1, 0])
    model = nn.Linear(3, 1)
    sides = both("classification", model, {"series": points, "labels": labels})
    known = labels >= 0
    two = torch.cat([torch.zeros(4, 1), model(torch.from_numpy(points[known]))], 1)
    theirs = nn.functional.cross_entropy(two, torch.from_numpy(labels[known])).item()
    assert sides.torch.loss == pytest.approx(theirs, rel=1e-6)
    agree(sides)


def test_regression_takes_a_column_of_width_one(both, agree):
    generator = np.random.default_rng(0)
    batch = {"a": generator.standard_normal((5, 3)), "target": generator.standard_normal(5)}
    sides = both("regression", nn.Linear(3, 1), {k: v.astype(np.float32) for k, v in batch.items()})
    agree(sides)


@pytest.mark.parametrize("seed", range(4))
def test_figures_of_classes_are_scikit_learns(seed):
    from sklearn import metrics

    generator = np.random.default_rng(seed)
    found, wanted = generator.integers(0, 5, 40), generator.integers(seed % 2, 4, 40)
    ours = class_metrics(found, wanted)
    assert ours["accuracy"] == pytest.approx(metrics.accuracy_score(wanted, found))
    assert ours["macro_f1"] == pytest.approx(metrics.f1_score(wanted, found, average="macro"))
    assert ours["matthews"] == pytest.approx(metrics.matthews_corrcoef(wanted, found))
    recalls = metrics.recall_score(wanted, found, average=None, labels=np.unique(wanted))
    assert ours["balanced_accuracy"] == pytest.approx(recalls.mean())


def test_figures_of_several_labels_are_scikit_learns():
    from sklearn import metrics

    found, wanted = np.random.default_rng(0).integers(0, 2, (2, 30, 3))
    ours = label_metrics(found, wanted)
    assert ours["accuracy"] == pytest.approx(metrics.accuracy_score(wanted, found))
    assert ours["macro_f1"] == pytest.approx(metrics.f1_score(wanted, found, average="macro"))
    assert ours["label_accuracy"] == pytest.approx(1 - metrics.hamming_loss(wanted, found))


class Plane(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layer = nn.Linear(2, classes)

    def forward(self, series):
        return self.layer(series)


@pytest.fixture
def plane(tmp_path):
    """Return a function that makes a configuration: which quarter of the plane a point is in."""

    def make(objective="classification", labels=lambda points: (points > 0) @ [1, 2], **changes):
        generator = np.random.default_rng(2)
        for split, count in {"train": 64, "validation": 45}.items():
            points = generator.standard_normal((count, 2))
            np.savez(tmp_path / f"{split}.npz", series=points, found=labels(points))
        data = {"kind": "series", "columns": {"series": "series", "labels": "found"}}
        data |= {split: str(tmp_path / f"{split}.npz") for split in ("train", "validation")}
        settings = {"model": "plane", "data": data, "objective": objective, "batch_size": 16}
        settings |= {
            "steps": 80,
            "validate_every": 80,
            "checkpoint_every": 80,
            "optimizer": {"learning_rate": 0.2},
        }
        return validate(settings | changes)

    return make


@pytest.mark.parametrize("backend", ["mlx", "torch"])
@pytest.mark.parametrize("several", [False, True])
def test_a_classifier_of_series_learns(backend, several, plane, tmp_path):
    labels = (lambda points: points > 0) if several else (lambda points: (points > 0) @ [1, 2])
    config = plane(labels=lambda points: labels(points).astype(int))
    task = build_task(config, Plane(2 if several else 4))
    result = train(config, tmp_path / "run", backend=backend, task=task)
    assert result.metric == "accuracy"
    assert result.best["accuracy"] > 0.9 > result.before["accuracy"]


def test_predictions_come_back_in_order_and_the_loss_follows_from_them(plane):
    task = build_task(
        config := plane("regression", labels=lambda points: points @ [1, 2]), Plane(1)
    )
    step = make_step("torch", task, config)
    data = task.splits["validation"]
    found, wanted = predictions(step, data)
    batch = data.batch(range(len(data))).inputs
    assert np.array_equal(wanted, batch["labels"])
    assert np.allclose(found, step.embed({"series": batch["series"]}), atol=1e-6)
    scores = task.objective.measure(step, data, 16)
    loss = measure_loss(step, data, 7).metrics["loss"]
    assert scores.metrics["loss"] == pytest.approx(loss, rel=1e-6)
    assert scores.each.shape == (45,)


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ([0.0, 4, 1], "train: example 1 has the label 4.0, and the model has the classes 0 to 3"),
        ([0.0, 1, 0.5], "train: example 2 has the label 0.5"),
        ([0.0, -100, 3], None),
        ([[0.0, 1, 1]] * 3, "train: example 0 has the label [0.0, 1.0, 1.0]"),
        ([[0.0, 1, 1, 1]] * 2 + [[0.0, 2, 1, 1]], "train: example 2 has the label"),
    ],
)
def test_a_label_that_is_no_class_of_the_model_is_refused(labels, told):
    rows = {"series": np.zeros((3, 2), np.float32), "labels": np.array(labels, np.float32)}
    objective = taking(make_objective("classification", {}), rows)
    if told is None:
        check_labels(objective, Plane(4), {"train": Series(rows)})
        return
    with pytest.raises(MismatchError) as caught:
        check_labels(objective, Plane(4), {"train": Series(rows)})
    assert caught.value.problems[0].startswith(told)


class Normalised(nn.Module):
    """Batch statistics and two classes."""

    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(3), nn.Linear(3, 2)

    def forward(self, series):
        return self.head(self.norm(series))


def series_of(columns):
    values = np.random.default_rng(0).normal(size=(6, columns)).astype(np.float32)
    return {"train": Series({"series": values, "labels": np.zeros(6, np.int64)})}


def test_looking_at_the_classes_changes_no_batch_statistics_and_no_mode():
    module, objective = Normalised(), make_objective("classification", {})
    module.head.eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    check_labels(objective, module, series_of(3))
    try_loss(objective.make_loss(module), series_of(3))
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert (module.training, module.norm.training, module.head.training) == (True, True, False)


def test_data_that_the_model_cannot_take_is_refused_with_its_shape():
    with pytest.raises(
        BadInputError, match=r"cannot take an example of the data, series \[1, 4\]: "
    ):
        check_labels(make_objective("classification", {}), Normalised(), series_of(4))
