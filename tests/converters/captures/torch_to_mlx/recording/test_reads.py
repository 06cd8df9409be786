"""Rows that a mask chooses are computed among all rows, and give torch's values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from weighbridge.errors import UnsupportedError

MASK = torch.tensor([[0, 1, 1, 0, 1], [0, 0, 1, 0, 0], [1, 1, 1, 0, 0]]).bool()
WEIGHT = torch.randn(2, 4)


def written(x, mask):
    y = x * 3
    y[mask] = torch.tanh(x[mask]) * 2
    return y


def written_by_masks_spelled_alike(x):
    y, z = x * 3, x * 2
    y[x > 0] = torch.tanh(x[x > 0])
    z[x > 0] = torch.exp(x[x > 0])
    return y * z


def positive(x):
    return x[x > 0].log().sum()  # elsewhere it has no logarithm, and at 0 no gradient


CASES = {
    "mean": (lambda x, m: x[m].mean(), (3, 5, 4), MASK),
    "sum of rows": (lambda x, m: (x[m] * x[0, 0] + 1).sum(), (3, 5, 4), MASK),
    "elements": (lambda x, m: x[m].square().mean(), (3, 5), MASK),
    "selected": (lambda x, m: torch.masked_select(x, m[..., None]).exp().sum(), (3, 5, 4), MASK),
    "projected": (lambda x, m: functional.linear(x[m], WEIGHT).relu().mean(), (3, 5, 4), MASK),
    "loss": (lambda x, m: functional.mse_loss(x[m], (x * 2)[m] + 1), (3, 5, 4), MASK),
    "loss summed": (
        lambda x, m: functional.smooth_l1_loss(x[m], x[m] ** 2, reduction="sum"),
        (3, 5, 4),
        MASK,
    ),
    "written": (written, (3, 5, 4), MASK),
    "written by masks that are spelled alike": (written_by_masks_spelled_alike, (3, 5, 4)),
    "singular elsewhere": (positive, torch.tensor([1.5, 0.0, -2.0, 0.3])),
    "none": (lambda x, m: x[m].sum(), (3, 5), MASK & ~MASK),
    "none, of a function that is singular at the first": (
        lambda x, w, m: (x[m] * w).log().sum(),
        torch.zeros(3, 5, 2),
        (2,),
        MASK & ~MASK,
    ),
    "normalized": (
        lambda x, m: functional.layer_norm(x[m], (4,)).softmax(1).square().sum(),
        (3, 5, 4),
        MASK,
    ),
}
LABELS = torch.tensor([[-100, 1, 0, 3, 2], [-100, 3, 3, -100, 1], [0, -100, -100, -100, 6]])
FOUND, SCORES = LABELS != -100, torch.rand(7)


def head(x, w, y):
    kept = y != -100
    hidden = functional.layer_norm(functional.gelu(x[kept]), (4,))
    return functional.cross_entropy((hidden @ w).view(-1, 7).float(), y[kept].view(-1))


def asked_twice(x, y):
    return functional.cross_entropy(x[y != -100], y[y != -100])


def of_a_row(x, y):
    kept = y.view(-1) != -100
    return functional.cross_entropy(x.view(-1, 7)[kept], y.view(-1)[kept], reduction="sum")


CLASSIFIED = {
    "mean": (lambda x, m, y: functional.cross_entropy(x[m], y[m]), (3, 5, 7), FOUND, LABELS),
    "weights": (
        lambda x, m, y: functional.cross_entropy(x[m], y[m], SCORES, label_smoothing=0.2),
        (3, 5, 7),
        FOUND,
        LABELS,
    ),
    "each": (
        lambda x, m, y: functional.cross_entropy(x[m], y[m], reduction="none").square().mean(),
        (3, 5, 7),
        FOUND,
        LABELS,
    ),
    "logarithms": (
        lambda x, m, y: functional.nll_loss(x[m].log_softmax(-1), y[m]),
        (3, 5, 7),
        FOUND,
        LABELS,
    ),
    "none": (
        lambda x, m, y: functional.cross_entropy(x[m], y[m], reduction="sum"),
        (3, 5, 7),
        FOUND & ~FOUND,
        LABELS,
    ),
    "two classes": (
        lambda x, m, y: functional.binary_cross_entropy_with_logits(
            x[m], (y[m] > 1).float(), pos_weight=torch.tensor(2.0)
        ),
        (3, 5),
        FOUND,
        LABELS,
    ),
    "a head": (head, (3, 5, 4), (4, 7), LABELS),
    "a mask that is computed twice": (asked_twice, (3, 5, 7), LABELS),
    "flat": (of_a_row, (3, 5, 7), LABELS),
}


def test_what_a_mask_chooses_is_joined_or_written_as_in_torch(agree):
    agree(CASES, rtol=4e-6)


def test_losses_of_chosen_rows_are_those_of_torch(agree):
    agree(CLASSIFIED, rtol=4e-6)


def test_means_in_float16_are_of_sums_in_float32(agree):
    tens = torch.full((90, 90), 10.0).half()
    agree({"mean": (lambda x: x[x > 0].mean(), tens)}, rtol=1e-3)


@pytest.mark.parametrize("shape", [(5,), (3, 1, 5)])
def test_a_mask_that_is_wider_than_what_it_chooses_of_is_refused_by_name(agree, shape):
    with pytest.raises(UnsupportedError, match=r"aten.masked_select.*: 1 in"):
        agree({"wide": (lambda x, m: torch.masked_select(x, m).sum(), shape, MASK)})


def test_rows_that_are_not_joined_are_refused(agree):
    with pytest.raises(UnsupportedError, match="its shape depends on values"):
        agree({"rows": (lambda x: x[x > 0], (3, 5))})


def test_a_softmax_over_chosen_elements_is_no_work_by_rows(agree):
    with pytest.raises(UnsupportedError, match="its shape depends on values"):
        agree({"over": (lambda x: x[x > 0].softmax(0).sum(), (3, 5))})


def of_the_same(x, y):
    """Compare anew for each read; what is changed in between has another mask."""
    y, other = y.clone(), y > 0
    loss = functional.mse_loss(x[y > 0], y[y > 0])
    other[0] = True
    sums = [x[other].sum(), x[y > 0].sum()]
    y += 1
    sums.append(x[y > 0].sum())
    y[1] = -5
    return loss, *sums, x[y > 0].sum(), functional.huber_loss(x[y.isfinite()], y[y.isfinite()])


def test_masks_that_compare_alike_read_as_much(agree):
    agree({"twice": (of_the_same, (6,), (6,))}, rtol=4e-6)


def normed(x):
    return WEIGHT[0] * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


def scattered(x, m):
    """Give chosen rows and the others a norm each, as models of text and speech do."""
    shown = m > 0
    x = x.masked_scatter(shown.unsqueeze(-1), normed(x[shown]))
    x = x.masked_scatter(~shown.unsqueeze(-1), torch.tanh(normed(x[~shown])))
    x[~shown] += functional.linear(x[~shown], WEIGHT.T @ WEIGHT)
    return x


def put_at_places(x, m):
    shown = (m > 0).clone()
    shown[torch.where(shown.sum(-1) == shown.shape[-1])] = False  # rows that are all hidden
    return x * shown


def flat_places(x):
    return x.reshape(-1).index_select(0, (x.reshape(-1) > 0).nonzero().squeeze(-1)).exp().sum()


PLACES = {
    "scattered": (scattered, (3, 5, 4), (3, 5)),
    "at places": (lambda x, m: x[torch.where(m > 0)].square().sum(), (3, 5, 4), (3, 5)),
    "of whole numbers": (lambda x, m: x[m.long().nonzero(as_tuple=True)].sum(), (3, 5), (3, 5)),
    "put at places": (put_at_places, (6, 2), (6, 2)),
    "flat": (flat_places, (3, 5)),
    "spread": (lambda x, m: x[m > 0].var(-1).add(x[m > 0].amax(1)).sum(), (3, 5, 4), (3, 5)),
}


def test_other_rows_are_normed_scattered_and_found_by_places_as_in_torch(agree):
    agree(PLACES, rtol=4e-6, anew=True)


REFUSED = {
    "places in another order": lambda x: x[tuple(reversed(torch.where(x > 0)))].sum(),
    "places of one axis": lambda x: x[torch.where(x > 0)[0]].sum(),
    "a mean over rows": lambda x: x[x[:, 0] > 0].mean(0),
    "scattered by another mask": lambda x: x.masked_scatter(x > 0, x[x < 0]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_the_same_for_every_row_is_refused(agree, name):
    with pytest.raises(UnsupportedError, match=r"its shape depends on values|nonzero"):
        agree({name: (REFUSED[name], (4, 4))})
