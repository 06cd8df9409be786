"""Losses of pairs against those of sentence-transformers and torch, at every size and in both frameworks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from weighbridge.errors import MismatchError
from weighbridge.trainers.objectives.embedding import Embedding, TokenEmbedding
from weighbridge.trainers.objectives.maxsim import MaxSim
from weighbridge.trainers.runs.loop import train


class Words(nn.Module):
    """The smallest encoder: an embedding and a layer."""

    def __init__(self, width=5):
        super().__init__()
        self.words = nn.Embedding(900, width)
        self.layer = nn.Linear(width, width)

    def forward(self, input_ids, attention_mask):
        return torch.tanh(self.layer(self.words(input_ids)))


@pytest.fixture
def words():
    torch.manual_seed(0)
    return Words()


def text(generator, shape, first):
    """Return ids, none of them twice, and masks."""
    mask = np.arange(shape[-1]) < generator.integers(2, shape[-1] + 1, (*shape[:-1], 1))
    ids = first + generator.permutation(np.prod(shape)).reshape(shape)
    return {"ids": ids * mask, "mask": mask.astype(int)}


def pairs(rows=4, lengths=(5, 7), negatives=0, seed=0):
    generator = np.random.default_rng(seed)
    shapes = {"query": (rows, lengths[0]), "document": (rows, lengths[1])}
    if negatives:
        shapes["negative"] = (rows, negatives, lengths[1] + 1)
    found = {
        name: text(generator, shape, 1 + 300 * number)
        for number, (name, shape) in enumerate(shapes.items())
    }
    return {f"{name}_{part}": it for name, parts in found.items() for part, it in parts.items()}


def embedded(model, batch, kind=Embedding):
    """Return the embeddings of queries, documents and of the negatives in order, in float64."""
    model = kind(model).double()
    fed = {name: torch.from_numpy(it) for name, it in batch.items()}
    sides = [model(fed["query_ids"], fed["query_mask"])]
    sides.append(model(fed["document_ids"], fed["document_mask"]))
    if "negative_ids" in fed:
        parts = (fed[f"negative_{part}"].unbind(1) for part in ("ids", "mask"))
        sides += [model(*each) for each in zip(*parts, strict=True)]
    model.float()
    return [side.detach() for side in sides]


@pytest.mark.parametrize(("negatives", "symmetric"), [(0, True), (2, False)])
def test_info_nce_is_that_of_sentence_transformers(negatives, symmetric, both, agree, words):
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from sentence_transformers.util import cos_sim

    batch = pairs(negatives=negatives)
    options = {"temperature": 0.1, "symmetric": symmetric}
    sides = both("contrastive", words, batch, example=pairs(3, (4, 6), negatives, 1), **options)
    agree(sides)
    ways = ("query_to_doc", "doc_to_query") if symmetric else ("query_to_doc",)
    theirs = MultipleNegativesRankingLoss(
        None, 10.0, cos_sim, directions=ways, partition_mode="per_direction"
    )
    expected = theirs.compute_loss_from_embeddings(embedded(words, batch), None).item()
    assert sides.double.loss == pytest.approx(expected, rel=1e-6)


def test_the_margin_is_that_of_torch(both, agree, words):
    batch = pairs(negatives=2)
    sides = both("margin", words, batch, example=pairs(3, (4, 6), 2, 1), margin=0.4)
    agree(sides)
    queries, *documents = embedded(words, batch)
    own = torch.cat([documents[0], torch.stack(documents[1:], 1).flatten(0, 1)])
    expected = nn.functional.multi_margin_loss(queries @ own.T, torch.arange(4), margin=0.4)
    assert sides.double.loss == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_triplets_are_those_of_sentence_transformers(distance, both, agree, words):
    from sentence_transformers.sentence_transformer.losses import TripletLoss
    from sentence_transformers.sentence_transformer.losses.triplet import TripletDistanceMetric

    batch = pairs(negatives=1)
    sides = both("triplet", words, batch, pairs(3, (4, 6), 1, 1), margin=0.4, distance=distance)
    agree(sides)
    metric = getattr(TripletDistanceMetric, distance.upper())
    theirs = TripletLoss(nn.Identity(), metric, 0.4)
    expected = theirs.compute_loss_from_embeddings(embedded(words, batch), None).item()
    assert sides.double.loss == pytest.approx(
        expected, rel=1e-4 if distance == "euclidean" else 1e-6
    )


@pytest.mark.parametrize(("top_k", "negatives"), [(None, 0), (3, 2)])
def test_late_interaction_is_that_of_sentence_transformers(top_k, negatives, both, agree, words):
    from sentence_transformers.multi_vector_encoder.scoring import colbert_scores, xtr_scores

    batch = pairs(negatives=negatives)
    options = {"temperature": 0.5, "top_k": top_k}
    sides = both("maxsim", words, batch, example=pairs(3, (4, 6), negatives, 1), **options)
    agree(sides)
    queries, *documents = embedded(words, batch, TokenEmbedding)
    longest = max(it.shape[1] for it in documents)
    filled = [nn.functional.pad(it, (0, 0, 0, longest - it.shape[1])) for it in documents]
    stacked = torch.stack(filled, 1)
    masks = {"queries_mask": queries.any(-1), "documents_mask": stacked.any(-1)}
    score = colbert_scores if top_k is None else lambda *a, **k: xtr_scores(*a, top_k=top_k, **k)
    scores = score(queries, stacked, **masks).double()
    expected = nn.functional.cross_entropy(scores / 0.5, torch.arange(4) * stacked.shape[1])
    assert sides.double.loss == pytest.approx(expected.item(), rel=1e-6)


def test_a_margin_beside_late_interaction_is_added(both, agree, words):
    batch, plain = pairs(), {"temperature": 0.5}
    alone = both("maxsim", words, batch, **plain)
    sides = both("maxsim", words, batch, margin=2.0, margin_weight=0.5, **plain)
    agree(sides)
    queries, documents = embedded(words, batch, TokenEmbedding)
    scores = MaxSim(words).nearness(queries, [documents])
    margin = nn.functional.multi_margin_loss(scores, torch.arange(4), margin=2.0).item()
    assert sides.double.loss == pytest.approx(alone.double.loss + 0.5 * margin, rel=1e-6)


def test_a_document_that_repeats_in_a_batch_is_no_wrong_answer(both, agree, words):
    """Of two pairs with one document, or one query, neither counts as the other's negative."""
    batch = pairs(negatives=1)
    for part in ("ids", "mask"):
        batch[f"document_{part}"][1] = batch[f"document_{part}"][0]
        batch[f"query_{part}"][3] = batch[f"query_{part}"][2]
        batch[f"negative_{part}"][0, 0] = 0
        batch[f"negative_{part}"][0, 0, :7] = batch[f"document_{part}"][2]
    sides = both("contrastive", words, batch, temperature=0.1, symmetric=False)
    agree(sides)
    queries, *documents = embedded(words, batch)
    scores = queries @ torch.cat(documents).T / 0.1
    for row, column in [(0, 1), (1, 0), (2, 3), (3, 2), (2, 4)]:
        scores[row, column] = -torch.inf
    expected = nn.functional.cross_entropy(scores, torch.arange(4)).item()
    assert sides.double.loss == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("backend", ["mlx", "torch"])
def test_late_interaction_learns_from_pairs(backend, pairs_config, pairs_task, tmp_path):
    objective = {"name": "maxsim", "temperature": 0.5, "margin_weight": 0.1}
    config = pairs_config(objective=objective, steps=12, optimizer={"learning_rate": 0.02})
    result = train(config, tmp_path / "run", backend=backend, task=pairs_task(config))
    assert result.best["mrr"] > result.before["mrr"]


def test_pairs_without_negatives_are_refused_by_triplet(pairs_config, pairs_task):
    with pytest.raises(MismatchError, match="negative_ids is an input of the objective"):
        pairs_task(pairs_config(objective="triplet"))
