"""Feed-forward units: plain, gated, and gated with a number of their own that is learned.

A gated unit is ``down(f(gate(x)) * up(x))`` (Dauphin et al. 2017; Shazeer 2020), with two thirds of a plain
unit's hidden width, so that all of them have about the same number of parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...errors import BadInputError


class Swish(nn.Module):
    """``x * sigmoid(alpha * x)`` with one learned number, of no axis (Ramachandran et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        """Return an array of X's shape."""
        return x * torch.sigmoid(self.alpha * x)


class Blend(nn.Module):
    """``alpha * gelu(x) + (1 - alpha) * x``: between a gate and a product without one."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        """Return an array of X's shape."""
        return torch.lerp(x, functional.gelu(x), self.alpha)


class Function(nn.Module):
    """A function of torch's without parameters."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._function = function

    def forward(self, x: Tensor) -> Tensor:
        """Return an array of X's shape."""
        return self._function(x)


PLAIN: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "gelu": functional.gelu,
    "relu": functional.relu,
}
GATED: Final[dict[str, Callable[[], nn.Module]]] = {
    "glu": lambda: Function(torch.sigmoid),
    "reglu": lambda: Function(functional.relu),
    "geglu": lambda: Function(functional.gelu),
    "swiglu": lambda: Function(functional.silu),
    "swish_glu": Swish,
    "blend_glu": Blend,
}
UNITS: Final = (*PLAIN, *GATED)


class FeedForward(nn.Module):
    """A unit by its name.

    Args:
        width: of its input and output.
        hidden: width within a plain unit; a gated one has two thirds of it.
        unit: one of ``UNITS``.

    Raises:
        BadInputError: there is no such unit.
    """

    def __init__(self, width: int, hidden: int, unit: str) -> None:
        super().__init__()
        if unit not in UNITS:
            raise BadInputError(f"there is no unit {unit}; choose from {', '.join(UNITS)}")
        gated = unit in GATED
        inner = hidden * 2 // 3 if gated else hidden
        self.gate = nn.Linear(width, inner, bias=False) if gated else None
        self.up = nn.Linear(width, inner, bias=False)
        self.activation = GATED[unit]() if gated else Function(PLAIN[unit])
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return an array of X's shape, ``(..., width)``."""
        if self.gate is None:
            found: Tensor = self.down(self.activation(self.up(x)))
        else:
            found = self.down(self.activation(self.gate(x)) * self.up(x))
        return found
