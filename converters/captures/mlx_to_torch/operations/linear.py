"""Products of matrices, and what is decomposed from them."""

from __future__ import annotations

import torch
from torch import Tensor

from .registry import Call, primitive


@primitive("Matmul")
def _matmul(call: Call) -> Tensor:
    a, b = call.inputs
    return torch.matmul(a, b.to(a.dtype))  # of a quantized weight made dense, the dtype may differ


@primitive("AddMM")
def _addmm(call: Call) -> Tensor:
    a, b, added = call.inputs
    alpha, beta = call.arguments
    product = torch.matmul(a, b)
    return (product if alpha == 1 else alpha * product) + (added if beta == 1 else beta * added)


@primitive("GatherMM")
def _gather_mm(call: Call) -> Tensor:
    a, b, left, right = call.inputs
    return gathered_matmul((a, left), (b, right))


def gathered_matmul(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> Tensor:
    """Return products of matrices: of the stack ONE[0] those at ONE[1], of OTHER likewise."""
    (a, left), (b, right) = one, other
    chosen = a.reshape(-1, *a.shape[-2:])[left.long()]
    return torch.matmul(chosen, b.reshape(-1, *b.shape[-2:])[right.long()].to(a.dtype))


@primitive("Cholesky")
def _cholesky(call: Call) -> Tensor:
    made: Tensor = torch.linalg.cholesky(call.inputs[0], upper=call.arguments[0])
    return made


@primitive("Inverse")
def _inverse(call: Call) -> Tensor:
    triangular, upper = call.arguments
    x = call.inputs[0]
    made: Tensor = torch.linalg.inv(x)
    if triangular:
        one = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
        made = torch.linalg.solve_triangular(x, one, upper=upper)
    return made
