"""Losses mask targets only where one of them may be the class to ignore."""

import io

import mlx.core as mx
import pytest
import torch
from torch import nn
from torch.nn import functional

from weighbridge.converters.captures import capture
from weighbridge.converters.captures.torch_to_mlx.dtypes import to_mlx
from weighbridge.converters.captures.torch_to_mlx.passes.table import PASSES

IDS = torch.tensor([[3, 5, 7, 2, 11], [1, 2, 3, 4, 0]])
LABELS = torch.tensor([[3, -100, 7, 2, 11], [1, 2, -100, 4, 0]])


def next_words(ids, labels, logits):
    return logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()


def labels_given(ids, labels, logits):
    return logits.flatten(0, 1), labels.flatten()


def padded_ids(ids, labels, logits):
    return logits.flatten(0, 1), functional.pad(ids, (0, 1), value=-100)[:, 1:].flatten()


def own_rows(ids, labels, logits):
    scores = logits[:, 0] @ logits[:, 1].T
    return scores, torch.arange(len(scores))


def constants(ids, labels, logits):
    return logits[:, 0], torch.tensor([4, 2])


def ignored_constants(ids, labels, logits):
    return logits[:, 0], torch.tensor([4, -100])


class Loss(nn.Module):
    def __init__(self, compared, **options):
        super().__init__()
        self.compared, self.options = compared, options
        self.embedding, self.head = nn.Embedding(12, 8), nn.Linear(8, 12)

    def forward(self, ids, labels):
        logits, targets = self.compared(ids, labels, self.head(self.embedding(ids)))
        return {"loss": functional.cross_entropy(logits, targets, **self.options)}


def comparisons(captured, inputs):
    """Return how many times MLX compares for inequality, which is how targets are masked."""
    drawn = io.StringIO()
    mx.export_to_dot(drawn, captured(**{name: to_mlx(it) for name, it in inputs.items()})["loss"])
    return drawn.getvalue().count('"NotEqual"')


CASES = {
    "the next of the ids that are looked up": (next_words, {}, False),
    "labels that are given": (labels_given, {}, True),
    "ids, and -100 after them": (padded_ids, {}, True),
    "ids, one of which is to be ignored": (next_words, {"ignore_index": 0}, True),
    "the number of each row": (own_rows, {}, False),
    "the number of each row, the first to be ignored": (own_rows, {"ignore_index": 0}, True),
    "constants": (constants, {"reduction": "sum"}, False),
    "constants with class weights": (constants, {"weight": torch.arange(1.0, 13)}, False),
    "constants, one of them ignored": (ignored_constants, {}, True),
    "constants, smoothed": (constants, {"label_smoothing": 0.1}, False),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("fused", [False, True])
def test_targets_are_masked_only_where_one_may_be_ignored(case, fused, proven, monkeypatch):
    from weighbridge.converters.captures.torch_to_mlx.operations.layers import losses

    compared, options, masked = CASES[case]
    monkeypatch.setattr(losses, "_fusible", lambda *_: fused)  # MLX's kernel, and its form on a CPU
    module, inputs = Loss(compared, **options), {"ids": IDS, "labels": LABELS}
    captured = proven(module, inputs)
    always = capture(module, inputs=inputs, passes=set(PASSES) - {"targets"})
    assert (comparisons(captured, inputs) == comparisons(always, inputs)) == masked


def test_rows_of_varying_number_are_not_masked(assert_same):
    module, inputs = Loss(own_rows), {"ids": IDS, "labels": LABELS}
    sizes = {"ids": {0: "rows"}, "labels": {0: "rows"}}
    captured, always = (
        capture(module, inputs=inputs, dynamic=sizes, passes=passes)
        for passes in (None, set(PASSES) - {"targets"})
    )
    for rows in (1, 3):
        given = {name: it[:1].repeat(rows, 1) for name, it in inputs.items()}
        assert comparisons(captured, given) == comparisons(always, given) - 1
        found = captured(**{name: to_mlx(it) for name, it in given.items()})["loss"]
        assert_same(found, module(**given)["loss"], 1e-6)
