"""A batch embedded chunk by chunk: the gradient of the whole batch, in both backends."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from weighbridge.errors import MismatchError, UnsupportedError
from weighbridge.trainers.objectives.embedding import Embedding
from weighbridge.trainers.runs.loop import make_step
from weighbridge.trainers.steps.torch import TorchStep
from weighbridge.trainers.tasks import build_task

BACKENDS = ["mlx", "torch"]


@pytest.fixture
def pairs_task(pairs_config, tiny_bert_dir):
    """Return a function that makes the task of a configuration; chunks are the same at any depth."""
    from transformers import BertModel

    def make(config=None):
        sizes = {"add_pooling_layer": False, "num_hidden_layers": 1}
        model = BertModel.from_pretrained(tiny_bert_dir, **sizes)
        return build_task(config or pairs_config(), model, tiny_bert_dir)

    return make


@pytest.fixture
def negatives_data(tmp_path):
    """Return the data of pairs of which each has two negatives."""
    row = (
        '{{"query": "sum {0}", "document": "list {0}", "negative": ["sort {0}", "file {0} text"]}}'
    )
    for name in ("train", "validation"):
        (tmp_path / f"{name}.jsonl").write_text(
            "".join(row.format(word) + "\n" for word in ("read", "write", "tree", "key", "open"))
        )
    lengths = {"query": [8], "document": [16]}
    files = {name: str(tmp_path / f"{name}.jsonl") for name in ("train", "validation")}
    return {"kind": "pairs", "lengths": lengths} | files


def both(backend, make_config, make_task, **changes):
    """Return torch's step that has the whole batch at once, one of chunks of three, and a batch of five."""
    config = make_config(mode="eval", batch_size=5, **changes)
    task = make_task(config)
    chunks = make_step(backend, task, config.model_copy(update={"grad_cache": 3}))
    return TorchStep(task, config, "float64"), chunks, task.splits["train"].batch(range(5))


def apart(one, other):
    """Return how far gradients are apart, as a fraction of the largest."""
    largest = max(np.abs(value).max() for value in other.values())
    assert largest > 0
    return max(np.abs(one[name] - other[name]).max() for name in other) / largest


@pytest.mark.parametrize(
    ("backend", "name", "negatives"),
    [
        ("mlx", "contrastive", False),
        ("mlx", "maxsim", True),
        ("torch", "contrastive", False),
        ("torch", "margin", False),
        ("torch", "triplet", True),
        ("torch", "maxsim", True),
    ],
)
def test_chunks_have_the_gradient_of_the_whole_batch(
    backend, name, negatives, pairs_config, pairs_task, negatives_data
):
    changes = {"objective": {"name": name}} | ({"data": negatives_data} if negatives else {})
    whole, chunks, batch = both(backend, pairs_config, pairs_task, **changes)
    assert ("negative_ids" in batch.inputs) is negatives
    (one, gradient), (other, summed) = whole.gradients(batch), chunks.gradients(batch)
    assert other == pytest.approx(one, rel=1e-6)
    assert apart(gradient, summed) <= 1e-5
    assert chunks.loss(batch.inputs) == pytest.approx(one, rel=1e-6)
    assert np.allclose(*(it.embed(queries(batch)) for it in (whole, chunks)), atol=1e-5)


def queries(batch):
    return {part: batch.inputs[f"query_{part}"] for part in ("ids", "mask")}


@pytest.mark.parametrize("backend", BACKENDS)
def test_updates_by_chunks_are_those_by_whole_batches(backend, pairs_config, pairs_task):
    changes = {"optimizer": {"name": "sgd"}, "objective": {"name": "contrastive"}}
    whole, chunks, batch = both(backend, pairs_config, pairs_task, **changes)
    before = whole.trainable()
    another = pairs_task(pairs_config()).splits["train"].batch(range(5, 9))
    for batches in ([batch], [batch, another]):
        one, other = (step.advance(batches, 0.05)() for step in (whole, chunks))
        assert other.loss == pytest.approx(one.loss, rel=1e-5)
        assert other.gradient_norm == pytest.approx(one.gradient_norm, rel=1e-5)
    moved, also = ({k: v - before[k] for k, v in it.trainable().items()} for it in (whole, chunks))
    assert apart(moved, also) <= 1e-4


def test_torch_never_embeds_more_than_a_chunk_in_an_update(pairs_config, pairs_task, monkeypatch):
    _, chunks, batch = both("torch", pairs_config, pairs_task)
    rows, forward = [], Embedding.forward

    def counted(module, ids, mask):
        rows.append(len(ids))
        return forward(module, ids, mask)

    monkeypatch.setattr(Embedding, "forward", counted)
    chunks.advance([batch], 0.1)()
    assert rows == [3, 2] * 4  # queries and documents, without a gradient and with it


@pytest.mark.parametrize("backend", BACKENDS)
def test_in_float16_the_scale_of_the_loss_is_taken_off(backend, pairs_config, pairs_task):
    whole, chunks, batch = both(backend, pairs_config, pairs_task, dtype="float16")
    exact, found = (step.advance([batch], 0.1)() for step in (whole, chunks))
    assert found.gradient_norm == pytest.approx(exact.gradient_norm, rel=0.1)


def test_what_has_no_embeddings_or_draws_random_numbers_is_refused(
    series_config, pairs_config, tiny_bert_dir
):
    from transformers import BertModel

    with pytest.raises(MismatchError, match="the objective regression has no embeddings of texts"):
        build_task(series_config(grad_cache=2, mode="eval"), torch.nn.Identity())
    model = BertModel.from_pretrained(tiny_bert_dir).train()
    with pytest.raises(MismatchError, match="set mode: eval"):
        build_task(pairs_config(grad_cache=2), model, tiny_bert_dir)


class Hiding(torch.nn.Module):
    """An encoder that asks its mask in Python whether a text has a first word."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.query = torch.nn.Embedding(2000, 8), torch.nn.Linear(8, 8)

    def forward(self, input_ids, attention_mask):
        hidden = self.query(self.words(input_ids))
        return hidden if attention_mask[:, 0].all() else hidden * attention_mask[..., None]


def test_a_chunk_on_which_a_mask_decides_otherwise_is_refused(pairs_config, tiny_bert_dir):
    config = pairs_config(mode="eval", batch_size=5, grad_cache=3, adapter=None)
    task = build_task(config, Hiding(), tiny_bert_dir)
    step = make_step("mlx", task, config)
    whole, other = (task.splits["train"].batch(range(5)) for _ in range(2))
    other.inputs["document_mask"][4, 0] = 0  # in the last chunk of two
    before = step.trainable()
    for kind in (
        step.gradients,
        lambda it: step.loss(it.inputs),
        lambda it: step.advance([it], 0.1)(),
    ):
        with pytest.raises(UnsupportedError, match="for this batch it decides otherwise"):
            kind(other)
    assert all(np.array_equal(before[name], it) for name, it in step.trainable().items())
    assert step.advance([whole], 0.1)().finite
