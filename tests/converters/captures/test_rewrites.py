"""Rewrites of what formats lack, held against torch where numbers have corners: ends, signs of zero, ties and NaN."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.nn import functional

from weighbridge.converters import coreai_rewrites
from weighbridge.converters.captures import rewrites
from weighbridge.converters.coreml import compat

INF, NAN = float("inf"), float("nan")
ENDS = torch.tensor([-INF, -3e38, -5.5, -2.0, -1.0, -1e-40, -0.0, 0.0, 1.0, 1.5, 2.0, 7.0, 3e38, INF, NAN])  # fmt: skip
X, Y = (it.contiguous() for it in torch.meshgrid(ENDS, ENDS, indexing="ij"))
DRAWN = torch.randint(-3, 4, (4, 9, 5), generator=torch.Generator().manual_seed(0)).float()
TIES = torch.where(
    DRAWN == 3, torch.tensor(INF), torch.where(DRAWN == -3, -torch.tensor(INF), DRAWN)
)
HOLES = torch.where(DRAWN == 1, torch.tensor(NAN), TIES)
IMAGE = torch.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5)
INTEGERS = torch.arange(-7, 8)


ATEN = torch.ops.aten
# name: what computes it, and torch's own, exactly alike.
EXACT = {
    "copysign": (rewrites.copysign, torch.copysign, X, Y),
    "copysign of a number": (rewrites.copysign, torch.copysign, X, -0.0),
    "copysign of integers": (rewrites.copysign, torch.copysign, INTEGERS, -2),
    "fmod": (rewrites.fmod, torch.fmod, X, Y),
    "fmod by a number": (rewrites.fmod, torch.fmod, X, -2.5),
    "fmod of integers": (rewrites.fmod, torch.fmod, INTEGERS, 3),
    "threshold": (rewrites.threshold, functional.threshold, ENDS, 1.0, 3.0),
    "threshold of -inf": (rewrites.threshold, functional.threshold, ENDS, -INF, -0.0),
    "trunc": (rewrites.trunc, torch.trunc, ENDS),
    "nansum": (rewrites.nansum, torch.nansum, Y[:, [0, 1, 2, 14]], [1]),
    "nansum of all": (rewrites.nansum, torch.nansum, DRAWN),
    "nansum of NaN": (rewrites.nansum, torch.nansum, torch.full((2, 3), NAN), [1], True),
    "lower triangle": (rewrites.lower, torch.tril, Y, 1),
    "upper triangle": (rewrites.upper, torch.triu, Y, -2),
    "pad": (rewrites.pad, functional.pad, IMAGE, [1, 2, 3, 0], "circular"),
    "pad by all": (rewrites.pad, functional.pad, IMAGE, [5, 5, 4, 4], "circular"),
    "bucketize": (rewrites.bucketize, torch.bucketize, ENDS, torch.tensor([-INF, -2.0, 0.0, 1.5, INF])),
    "median of all": (rewrites.median_of_all, torch.median, TIES),
    "median of NaN": (rewrites.median_of_all, torch.median, HOLES),
    "aminmax": (rewrites.ends, torch.aminmax, HOLES),
    "norm 3": (partial(rewrites.vector_norm, p=3), partial(torch.linalg.vector_norm, ord=3), torch.tensor([[0.0, INF], [0.0, -0.0], [NAN, 1.0]])),
}  # fmt: skip
ROUNDED = {
    "logsigmoid": (rewrites.log_sigmoid, functional.logsigmoid, ENDS),
    "logaddexp": (rewrites.logaddexp, torch.logaddexp, X, Y),
    "lerp": (rewrites.lerp, torch.lerp, X, Y, 0.3),
    "lerp nearer the end": (rewrites.lerp, torch.lerp, X, Y, 0.7),
    "lerp beyond": (rewrites.lerp, torch.lerp, X, Y, 1.5),
    "cosine_similarity": (rewrites.cosine_similarity, functional.cosine_similarity, X[:, 2:12], Y[:, 2:12], 0),
    "distances": (rewrites.distances, torch.cdist, DRAWN, DRAWN + 1),
    "distances of 1": (rewrites.distances, torch.cdist, DRAWN, DRAWN + 1, 1.0),
    "distances of 0": (rewrites.distances, torch.cdist, DRAWN, DRAWN + 1, 0.0),
    "distances of inf": (rewrites.distances, torch.cdist, DRAWN, DRAWN + 1, INF),
    "gelu": (partial(compat.gelu, approximate="tanh"), partial(functional.gelu, approximate="tanh"), ENDS),
    "elu": (partial(coreai_rewrites.elu, alpha=0.7), partial(functional.elu, alpha=0.7), ENDS),
    "hypot": (coreai_rewrites.REWRITES[ATEN.hypot.default], torch.hypot, X[2:12, 2:12], Y[2:12, 2:12]),
    "erfc": (coreai_rewrites.REWRITES[ATEN.erfc.default], torch.erfc, ENDS),
    "var": (coreai_rewrites.var, partial(ATEN.var.correction), DRAWN),
    "cumprod": (rewrites.running(torch.mul), torch.cumprod, HOLES, 1),
    "logcumsumexp": (rewrites.running(rewrites.logaddexp), torch.logcumsumexp, HOLES, 1),
    "rrelu": (rewrites.rrelu, functional.rrelu, ENDS),
}  # fmt: skip
PLACES = {
    "cummax": (rewrites.so_far(torch.ge), torch.cummax),
    "cummin": (rewrites.so_far(torch.le), torch.cummin),
    "mode": (rewrites.most_often, torch.mode),
    "median": (rewrites.median, torch.median),
    "kthvalue": (lambda x, dim: rewrites.smallest(x, 3, dim), lambda x, dim: torch.kthvalue(x, 3, dim)),
}  # fmt: skip


def alike(found, wanted, *, exact=True):
    pairs = (
        [(found, wanted)] if isinstance(found, torch.Tensor) else zip(found, wanted, strict=True)
    )
    for one, other in pairs:
        assert one.dtype == other.dtype
        tolerance = {"rtol": 0, "atol": 0} if exact else {}
        torch.testing.assert_close(one, other, equal_nan=True, **tolerance)


@pytest.mark.parametrize("name", EXACT)
def test_what_is_rewritten_is_exactly_what_torch_computes(name):
    ours, theirs, *given = EXACT[name]
    alike(ours(*given), theirs(*given))


@pytest.mark.parametrize("name", ROUNDED)
def test_what_is_rewritten_is_what_torch_computes_up_to_rounding(name):
    ours, theirs, *given = ROUNDED[name]
    alike(ours(*given), theirs(*given), exact=False)


@pytest.mark.parametrize("values", [TIES, HOLES, DRAWN.long()], ids=["ties", "holes", "integers"])
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("name", PLACES)
def test_elements_that_are_picked_are_those_of_torch(name, dim, values):
    if name == "mode" and values is HOLES:  # torch leaves NaN in any order
        values = torch.where(values.isnan(), torch.tensor(5.0), values)
    ours, theirs = PLACES[name]
    found, places = ours(values, dim)
    wanted, theirs_places = theirs(values, dim)
    alike(found, wanted)
    if name in (
        "cummax",
        "cummin",
    ):  # of equal ones torch says of the others only that they are there
        assert torch.equal(places, theirs_places)
    there = values.gather(dim, places if places.ndim == values.ndim else places.unsqueeze(dim))
    alike(there.reshape(found.shape), found)


@pytest.mark.parametrize("name", ["copysign", "fmod", "trunc"])
def test_zeros_have_the_sign_that_torch_gives_them(name):
    ours, theirs, *given = EXACT[name]
    number = (
        ~torch.isnan(given[-1]) if name == "copysign" else slice(None)
    )  # of NaN no format keeps the sign
    found, wanted = ours(*given)[number], theirs(*given)[number]
    there = found == 0
    assert torch.equal(torch.signbit(found[there]), torch.signbit(wanted[there]))
