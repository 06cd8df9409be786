"""Linear recurrences along an axis of any length, by operations that formats have."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn

from .torch_to_mlx.operations.recurrent.recorded import OPERATIONS, SCANNED

SCAN: Final = OPERATIONS.linear_scan.default


def scanned(module: nn.Module) -> bool:
    """Say whether MODULE has states that a recurrence over time makes: Mamba's of transformers."""
    homes = {f"transformers.models.{name}.modeling_{name}" for name in SCANNED}
    return any(type(part).__module__ in homes for part in module.modules())


def earlier(x: Tensor, dim: int, steps: int) -> Tensor:
    """Return X as it was STEPS before along DIM, zeros where it began."""
    ends = [0, 0] * (x.ndim - 1 - dim % x.ndim) + [steps, 0]
    return torch.constant_pad_nd(x, ends).narrow(dim, 0, x.shape[dim])


def doubled(decay: Tensor, added: Tensor, dim: int) -> Tensor:
    """Return h_t = decay_t h_(t-1) + added_t for all t, from h = 0, each step joining twice as many.

    As many steps as the largest size of the axis needs (Hillis and Steele 1986, Data Parallel Algorithms).
    """
    reach, most = 1, largest(added.shape[dim])
    while reach < most:
        added = added + decay * earlier(added, dim, reach)
        decay = decay * earlier(decay, dim, reach) if 2 * reach < most else decay
        reach *= 2
    return added


def largest(size: Any) -> int:
    """Return the largest number that SIZE, one of a graph that is recorded, can be."""
    if isinstance(size, int):
        return size
    return int(size.node.shape_env.bound_sympy(size.node.expr).upper)


def stepped(decay: Tensor, added: Tensor, dim: int) -> Tensor:
    """Return the same, one step after the other, for an axis of any size."""
    from torch._higher_order_ops.scan import scan

    def step(state: Tensor, given: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        state = given[0] * state + given[1]
        return state, state.clone()

    along = (decay.movedim(dim, 0), added.movedim(dim, 0))
    states: Tensor = scan(step, torch.zeros_like(along[1][0]), along)[1]
    return states.movedim(0, dim)
