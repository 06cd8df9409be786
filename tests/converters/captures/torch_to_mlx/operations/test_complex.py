"""Functions of complex numbers: values and gradients are those of torch, or the capture says that there are none."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from weighbridge.errors import UnsupportedError

ONE = {
    "to the power of 3.3": lambda z: z**3.3,
    "to the power of 3": lambda z: z**3,
    "two to the power": lambda z: 2.0**z,
    "exp2": torch.exp2,
    "cumprod": lambda z: z.cumprod(0),
    "sgn": torch.sgn,
    "sinc": torch.sinc,
    "norm": torch.linalg.vector_norm,
    "1-norm": lambda z: torch.linalg.vector_norm(z, 1, 0),
    "3-norm": lambda z: torch.linalg.vector_norm(z, 3),
    "max-norm": lambda z: torch.linalg.vector_norm(z, torch.inf),
    "norm of zeros": lambda z: torch.linalg.vector_norm(z * 0),
    "normalize": lambda z: functional.normalize(z, dim=0),
    "var": lambda z: z.var(0),
    "std": lambda z: z.std(0, correction=0),
    "std_mean": lambda z: torch.std_mean(z, 0),
    "logsumexp": lambda z: torch.logsumexp(5 * z, 0),
    "logcumsumexp": lambda z: torch.logcumsumexp(z, 0),
    "abs of zero": lambda z: (z * 0).abs() + z.abs(),
    "square": torch.square,
    "exp": torch.exp,
    "log": torch.log,
    "angle": torch.angle,
}
TWO = {
    "pow": lambda z, w: z**w,
    "vdot": lambda z, w: torch.vdot(z[:, 0], w[:, 1]),
    "vecdot": torch.linalg.vecdot,
    "l1_loss": functional.l1_loss,
    "dist": torch.dist,
    "pairwise_distance": functional.pairwise_distance,
    "logaddexp": torch.logaddexp,
    "linear": lambda z, w: functional.linear(z, w, w[:, 0]),
    "linear without a bias": functional.linear,
    "matmul": lambda z, w: z @ w.mH,
    "einsum": lambda z, w: torch.einsum("ij,kj->ik", z, w.conj()),
    "where": lambda z, w: torch.where(z.real > 0, z, w),
    "rotated": lambda z, w: z * torch.polar(torch.ones(3, 3), w.real),
    "quotient": lambda z, w: z / w,
}


def of_parts(function):
    """Return FUNCTION of complex numbers as one of their parts."""

    def apply(*parts):
        found = function(*(torch.complex(*part.unbind(-1)) for part in parts))
        found = found if isinstance(found, tuple) else (found,)
        return [torch.view_as_real(x.resolve_conj()) if x.is_complex() else x for x in found]

    return apply


def test_functions_of_complex_numbers(agree):
    cases = {name: (of_parts(function), (3, 3, 2)) for name, function in ONE.items()}
    cases |= {name: (of_parts(f), (3, 3, 2), (3, 3, 2)) for name, f in TWO.items()}
    agree(cases, rtol=4e-6)


def test_linear_algebra_of_complex_matrices_is_refused(agree):
    with pytest.raises(UnsupportedError, match="no linear algebra of complex matrices"):
        agree({"eigh": (of_parts(torch.linalg.eigh), (3, 3, 2))})
