"""The loss over all alignments: lengths may be inputs, and sequences too short for their labels are infinite."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.nn import functional

LABELS = torch.tensor([[1, 2, 2, 3], [4, 1, -1, -1], [2, 3, 4, -1]])
LENGTHS = torch.tensor([9, 7, 8])
COUNTS = torch.tensor([4, 2, 0])
IN_A_ROW = torch.tensor([1, 2, 2, 3, 4, 1])
SHORT = torch.tensor([4, 7, 8])  # two equal labels need a blank between them


def loss(logits, labels, lengths, counts, **options):
    return functional.ctc_loss(logits.log_softmax(-1), labels, lengths, counts, **options)


def fixed(logits):
    return functional.ctc_loss(logits.log_softmax(-1), LABELS, (9, 7, 8), (4, 2, 0), blank=2)


def alone(logits, labels):
    lengths, counts = torch.tensor(9), torch.tensor(6)
    return loss(logits, labels, lengths, counts, reduction="none")


def test_the_loss_and_its_gradient_are_those_of_torch(agree):
    given = (torch.randn(9, 3, 5), LABELS, LENGTHS, COUNTS)
    cases = {
        reduction: (partial(loss, reduction=reduction), *given)
        for reduction in ("none", "mean", "sum")
    }
    cases["in a row"] = (loss, given[0], IN_A_ROW, LENGTHS, COUNTS)
    cases["other blank, lengths as numbers"] = (fixed, (9, 3, 5))
    cases["one sequence"] = (alone, (9, 5), IN_A_ROW)
    agree(cases, rtol=5e-6)


@pytest.mark.parametrize("zero", [False, True])
def test_a_sequence_too_short_for_its_labels_is_infinite_or_zero(agree, zero):
    run = partial(loss, reduction="none", zero_infinity=zero)
    agree({"short": (run, (9, 3, 5), LABELS, SHORT, COUNTS)}, rtol=5e-6)


def finite(*given):
    losses = loss(*given, reduction="none")
    return torch.where(torch.isinf(losses), 0, losses)


def test_an_infinite_loss_that_is_masked_has_the_gradient_nan_as_in_torch(agree):
    agree({"masked": (finite, (9, 3, 5), LABELS, SHORT, COUNTS)}, rtol=5e-6)
