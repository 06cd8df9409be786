"""Rows that a mask chooses are computed among all rows, and give torch's values and gradients."""

from __future__ import annotations

import mlx.core as mx
import pytest
import torch
from mlx import nn
from torch.nn import functional

import weighbridge
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
    "an axis that is there for several rows alone": lambda x: x[x[:, 0] > 0].squeeze().mean(0),
    "a median": lambda x: x[x[:, 0] > 0].median(),
    "a sum along the rows": lambda x: x[x > 0].cumsum(0).sum(),
    "written at places of one axis": lambda x: x.index_put(
        (torch.where(x > 0)[0],), x[torch.where(x > 0)[0]]
    ),
    "joined with others": lambda x: torch.cat([x[x > 0], x[x < 0]]).sum(),
    "scattered by another mask": lambda x: x.masked_scatter(x > 0, x[x < 0]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_the_same_for_every_row_is_refused(agree, name):
    with pytest.raises(UnsupportedError, match=r"its shape depends on values|nonzero"):
        agree({name: (REFUSED[name], (4, 4))})


def routed(x, scores, w):
    """Compute each expert on the tokens that chose it, as Mixtral's first code does."""
    weights, chosen = scores.softmax(-1).topk(2, -1)
    out = torch.zeros_like(x)
    for expert in range(scores.shape[-1]):
        token, place = torch.where(chosen == expert)
        out.index_add_(0, token, torch.tanh(x[token] @ w[expert]) * weights[token, place, None])
    return out


def pooled(x, m, w):
    """Pad back what a norm and a layer made of shown rows, and sum them by their sequence."""
    shown = m > 0
    rows = functional.normalize(functional.linear(x[shown].unsqueeze(1), w), dim=-1).flatten(1)
    back = torch.zeros(*m.shape, 3)
    back[shown] = rows
    count = torch.zeros(len(x)).index_put(
        (shown.nonzero()[:, 0],), rows.new_ones(rows.shape[0]), accumulate=True
    )
    return back, torch.zeros(len(x), 3).index_add(0, shown.nonzero()[:, 0], rows), count


def joined(x, m):
    rows = x[m > 0]
    parts = (rows.mean(0), rows.sum((0, 1)), rows.amax(0), rows.norm(), rows.square().min())
    spread = (rows.std(), rows.var(0), rows.std(0, correction=0))
    return *parts, *spread, rows.square().sum() / rows.shape[0], rows.sum() / rows.numel()


def chosen_classes(x, y):
    logits, classes = x[y >= 0], y[y >= 0]
    each = functional.cross_entropy(logits, classes, reduction="none")
    picked = logits.log_softmax(-1).gather(1, classes[:, None])
    spread = functional.kl_div(
        logits.log_softmax(-1), logits.mul(2).softmax(-1), reduction="batchmean"
    )
    return ((1 - torch.exp(-each)) ** 2 * each).mean(), picked.mean(), spread


JOINED = {
    "experts": (routed, (6, 4), (6, 3), (3, 4, 4)),
    "pooled": (pooled, (3, 5, 4), (3, 5), (3, 4)),
    "joined": (joined, (3, 5, 4), (3, 5)),
    "classes": (chosen_classes, (3, 5, 7), LABELS),
    "places in another order": (lambda x: x[tuple(reversed(torch.where(x > 0)))].sum(), (4, 4)),
    "places of one axis": (lambda x: x[torch.where(x > 0)[0]].square().sum(), (4, 4)),
}


def test_rows_are_joined_along_any_axis_and_summed_by_places_as_in_torch(agree):
    agree(JOINED, rtol=4e-6, anew=True)


class TwoLosses(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(1.3))

    def forward(self, x, y):
        """Return losses of rows that are computed unlike, so that torch broadcasts them."""
        shown, x = y > 0, x * self.scale
        return functional.mse_loss(x[shown], x[shown].exp()) + x[shown[:, 0]].softmax(1).norm()


def test_chosen_rows_keep_sizes_that_vary():
    torch.manual_seed(0)
    module, example = TwoLosses(), {"x": torch.randn(3, 4), "y": torch.randn(3, 4)}
    axes = {0: "batch", 1: "length"}
    captured = weighbridge.capture(module, inputs=example, dynamic={"x": axes, "y": axes})
    for shape in ((3, 4), (5, 2), (1, 7)):
        x, y = torch.randn(shape), torch.ones(shape)
        y[..., 0] = -1
        y[0] = 1
        loss = module(x, y)
        (wanted,) = torch.autograd.grad(loss, module.parameters())
        taken = {"x": mx.array(x.numpy()), "y": mx.array(y.numpy())}
        found, gradient = nn.value_and_grad(captured, captured)(**taken)
        assert found.item() == pytest.approx(loss.item(), rel=1e-5)
        assert gradient["scale"].item() == pytest.approx(wanted.item(), rel=1e-5)


def asked_by_torch(x, m):
    """Call what asks whether there are any rows, as norms of batches and sums of exponentials do."""
    rows = x[m > 0]
    mean, spread = torch.linspace(0, 1, 4), torch.linspace(1, 2, 4)
    return torch.logsumexp(rows, 0), functional.batch_norm(rows, mean, spread).tanh().sum()


def test_torch_asks_whether_there_are_rows_and_the_module_may_not(agree):
    agree({"torch": (asked_by_torch, (3, 5, 4), (3, 5))}, rtol=4e-6, anew=True)


ASKING = {
    "numel": lambda x: x.sum() if x[x > 0].numel() == 0 else x[x > 0].mean(),
    "len": lambda x: x[x > 0].mean() if len(x[x > 0]) else x.sum(),
    "shape": lambda x: x.sum() if 0 in x[x > 0].shape else x[x > 0].mean(),
    "any": lambda x: x[x > 0].mean() if (x > 0).any() else x.sum(),
}


@pytest.mark.parametrize("name", ASKING)
def test_a_module_that_asks_whether_there_are_rows_is_refused_with_line_and_cure(agree, name):
    with pytest.raises(
        UnsupportedError, match=r"at .*test_reads.py:\d+: (?s:.*)cure: .*do not ask"
    ):
        agree({name: (ASKING[name], (4, 4))})
