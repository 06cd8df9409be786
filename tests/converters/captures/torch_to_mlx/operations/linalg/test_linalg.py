"""Linear algebra against torch, values and gradients; signs of vectors are made to agree."""

from __future__ import annotations

import mlx.core as mx
import pytest
import torch
from torch import linalg

from weighbridge.converters.captures import capture
from weighbridge.converters.captures.torch_to_mlx.dtypes import to_mlx, to_torch

GENERATOR = torch.Generator().manual_seed(5)


def normal(*shape):
    return torch.randn(shape, generator=GENERATOR)


SQUARE, VECTORS, SEVERAL = normal(2, 4, 4), normal(2, 4), normal(2, 4, 3)
TALL, WIDE = normal(2, 5, 3), normal(2, 3, 5)
SINGULAR = torch.tensor([[1.0, 2, 3], [2, 4, 6], [1, 0, 1]])


def definite(x):
    return x @ x.mT + torch.eye(x.shape[-1])


def unsigned(factors):
    return [factor.abs() for factor in factors]


FACTORIZATIONS = {
    "cholesky": (lambda x: linalg.cholesky(definite(x)), SQUARE),
    "upper cholesky": (lambda x: linalg.cholesky(definite(x), upper=True), SQUARE),
    "eigh": (lambda x: unsigned(linalg.eigh(definite(x))), SQUARE),
    "eigh of the upper half": (lambda x: unsigned(linalg.eigh(x, UPLO="U")), SQUARE),
    "eigvalsh": (lambda x: linalg.eigvalsh(definite(x)), SQUARE),
    "svd of tall matrices": (lambda x: unsigned(linalg.svd(x, full_matrices=False)), TALL),
    "svd of wide matrices": (lambda x: unsigned(linalg.svd(x, full_matrices=False)), WIDE),
    "svd of nothing": (lambda x: linalg.svd(x[:, :0]), torch.ones(3, 2)),
    "singular values": (linalg.svdvals, TALL),
    "singular values that are equal": (linalg.svdvals, torch.eye(3)),
    "nuclear norm": (lambda x: linalg.matrix_norm(x, "nuc"), TALL),
    "spectral norm": (lambda x: linalg.matrix_norm(x, 2), TALL),
    "qr of tall matrices": (linalg.qr, TALL),
    "qr of wide matrices": (linalg.qr, WIDE),
    "matrix_rank": (linalg.matrix_rank, SINGULAR),
}
SOLUTIONS = {
    "inv": (linalg.inv, SQUARE),
    "solve": (linalg.solve, SQUARE, SEVERAL),
    "solve vectors": (linalg.solve, SQUARE, VECTORS),
    "solve from the right": (lambda a, b: linalg.solve(a, b.mT, left=False), SQUARE, SEVERAL),
    "solve one system many times": (linalg.solve, normal(4, 4), SEVERAL),
    "triangular": (lambda a, b: linalg.solve_triangular(a, b, upper=True), SQUARE, SEVERAL),
    "unit triangular": (
        lambda a, b: linalg.solve_triangular(a, b.mT, upper=False, left=False, unitriangular=True),
        SQUARE,
        SEVERAL,
    ),
    "cholesky_solve": (
        lambda b, a: torch.cholesky_solve(b, linalg.cholesky(definite(a))),
        SEVERAL,
        SQUARE,
    ),
    "cholesky_solve by any factor": (
        lambda b, a: torch.cholesky_solve(b, definite(a)),
        SEVERAL,
        SQUARE,
    ),
    "cholesky_solve by an upper factor": (
        lambda b, a: torch.cholesky_solve(b, definite(a), upper=True),
        SEVERAL,
        SQUARE,
    ),
    "cholesky_inverse": (lambda a: torch.cholesky_inverse(linalg.cholesky(definite(a))), SQUARE),
    "det": (linalg.det, SQUARE),
    "slogdet": (linalg.slogdet, SQUARE),
    "logdet": (lambda x: torch.logdet(definite(x)), SQUARE),
    "pinv": (linalg.pinv, TALL),
    "matrix_exp": (lambda x: linalg.matrix_exp(x * torch.tensor([[[0.01]], [[2.0]]])), SQUARE),
    "matrix_power": (lambda x: linalg.matrix_power(x, 3), SQUARE),
    "inverse matrix_power": (lambda x: linalg.matrix_power(x, -2), SQUARE),
    "multi_dot": (lambda a, b: linalg.multi_dot([a[0], b[0], b[1].mT]), SQUARE, SEVERAL),
    "cross": (lambda a, b: linalg.cross(a, b, dim=-1), TALL, TALL.flip(0)),
    "vander": (lambda x: linalg.vander(x, N=3), VECTORS),
}


@pytest.mark.parametrize("cases", [FACTORIZATIONS, SOLUTIONS], ids=["factorizations", "solutions"])
def test_linear_algebra(agree, cases):
    agree(cases, rtol=2e-5)


def by_products(x):
    """Return the determinant of a 3 x 3 matrix as the triple product of its rows."""
    first, second, third = x.unbind()
    return first @ linalg.cross(second, third)


class Determinant(torch.nn.Module):
    def forward(self, x):
        return linalg.det(x)


def test_the_gradient_of_a_singular_determinant_is_its_cofactors():
    """Torch's own is 0 where its factors round to a zero pivot, and right where they do not."""
    captured = capture(Determinant(), inputs={"x": SINGULAR})
    found = mx.grad(lambda x: captured(x=x))(to_mlx(SINGULAR))
    leaf = SINGULAR.clone().requires_grad_()
    (expected,) = torch.autograd.grad(by_products(leaf), leaf)
    torch.testing.assert_close(to_torch(found), expected, rtol=2e-5, atol=2e-5)
