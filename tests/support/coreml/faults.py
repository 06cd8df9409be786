"""Faults in exported packages: the gated GPT altered, and modules that overflow in half precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from .models import lively
from .modules import IDS, Block, Built, Gated, gated, signature

Alteration = Callable[[Any], None]


def swapped(one: Tensor, other: Tensor) -> None:
    """Exchange the values of two tensors."""
    kept = one.clone()
    one.copy_(other)
    other.copy_(kept)


def swap_heads(module: Any) -> None:
    """Exchange two heads of the keys and not of the others."""
    rows = module.blocks[0].attention.qkv.weight[24:48]
    swapped(rows[:8], rows[8:16])


def tanh_gelu(module: Any) -> None:
    """Compute GELU by its approximation."""

    def forward(self: Block, x: Tensor) -> Tensor:
        x = x + self.alpha * self.attention(self.norms[0](x))
        wide = functional.gelu(self.up(self.norms[1](x)), approximate="tanh")
        return x + self.beta * self.down(wide)

    _bind(module.blocks[0], forward)


def rectified(module: Any) -> None:
    """Put ReLU in place of GELU in one block."""

    def forward(self: Block, x: Tensor) -> Tensor:
        x = x + self.alpha * self.attention(self.norms[0](x))
        return x + self.beta * self.down(functional.relu(self.up(self.norms[1](x))))

    _bind(module.blocks[1], forward)


def without_residual(module: Any) -> None:
    """Leave a residual connection out."""

    def forward(self: Block, x: Tensor) -> Tensor:
        x = x + self.alpha * self.attention(self.norms[0](x))
        return self.beta * self.down(functional.gelu(self.up(self.norms[1](x))))

    _bind(module.blocks[1], forward)


def shifted(module: Any) -> None:
    """Count positions from one."""

    def forward(self: Gated, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(1, ids.shape[1] + 1).clamp(max=63))
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    _bind(module, forward)


def _bind(module: nn.Module, forward: Callable[..., Tensor]) -> None:
    module.forward = forward.__get__(module)  # type: ignore[method-assign]


FAULTS: Final[Mapping[str, Alteration]] = {
    "a bias of zeros": lambda it: it.blocks[0].up.bias.zero_(),
    "a gate left out": lambda it: it.blocks[0].alpha.fill_(1.0),
    "a gate 1 % larger": lambda it: it.blocks[1].beta.mul_(1.01),
    "an embedding row of zeros": lambda it: it.tokens.weight[60].zero_(),
    "a position's row changed": lambda it: it.places.weight[63].mul_(1.5),
    "key heads exchanged": swap_heads,
    "a square matrix transposed": lambda it: it.blocks[0].attention.out.weight.copy_(
        it.blocks[0].attention.out.weight.T.clone()
    ),
    "a sign flipped": lambda it: it.blocks[1].down.weight[3, 4].neg_(),
    "one number moved": lambda it: it.blocks[1].up.weight[0, 0].add_(0.01),
    "another epsilon": lambda it: setattr(it.blocks[0].norms[0], "eps", 1e-3),
    "norms exchanged": lambda it: swapped(
        it.blocks[0].norms[0].weight, it.blocks[0].norms[1].weight
    ),
    "blocks' matrices exchanged": lambda it: swapped(
        it.blocks[0].down.weight, it.blocks[1].down.weight
    ),
    "weights through bfloat16": lambda it: it.blocks[0].up.weight.copy_(
        it.blocks[0].up.weight.bfloat16().float()
    ),
    "a norm left out": lambda it: setattr(it, "norm", nn.Identity()),
    "a block left out": lambda it: it.blocks.__delitem__(1),
    "blocks in another order": lambda it: setattr(it, "blocks", it.blocks[::-1]),
    "GELU by tanh": tanh_gelu,
    "ReLU for GELU": rectified,
    "a residual left out": without_residual,
    "positions from one": shifted,
}


class Overflowing(nn.Module):
    """An embedding, a step that half precision cannot hold, and a linear layer behind it."""

    def __init__(self, step: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.tokens, self.up, self.head = nn.Embedding(61, 16), nn.Linear(16, 24), nn.Linear(24, 16)
        self.step = step

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (batch, sequence) to features."""
        return self.head(self.step(self.up(self.tokens(ids))))


def normed(x: Tensor) -> Tensor:
    """Divide by the root mean square."""
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)


OVERFLOWS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {
    "mean of squares": lambda x: normed(x * 4000),
    "sum of squares": lambda x: x * 4000 * ((x * 4000) ** 2).sum(-1, keepdim=True).pow(-0.5),
    "a product": lambda x: normed(x * 3e3 * (x * 3e3) * 1e-3),
    "an exponential": lambda x: torch.exp(x.abs() * 20) / (1 + torch.exp(x.abs() * 20)),
    "a cube": lambda x: (x * 200).pow(3) * 1e-6,
    "a reciprocal": lambda x: 1e-7 / (x.abs() * 1e-6 + 1e-9),
    "a sum": lambda x: torch.cumsum(x.abs() * 3e4, -1) * 1e-5,
    "a scale": lambda x: x * 1e6 * 1e-6,
    "a difference": lambda x: (x * 6e4 - x.flip(-1) * 6e4 * 3) * 1e-5,
    "scores": lambda x: torch.softmax((x * 2e3) @ (x * 2e3).transpose(-1, -2) * 1e-6, -1) @ x,
}
STEP: Final = {"name": "mean of squares"}  # which step the factory below builds
FAULT: Final = {"name": "a gate left out"}


def overflowing() -> Built:
    """Return the module of the step that is named in ``STEP``."""
    torch.manual_seed(0)
    return lively(Overflowing(OVERFLOWS[STEP["name"]])), signature(IDS, 16)


def altered() -> Built:
    """Return the gated GPT with the fault that is named in ``FAULT``."""
    module, described = gated()
    with torch.no_grad():
        FAULTS[FAULT["name"]](module)
    return module.eval(), described
