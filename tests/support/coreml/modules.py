"""Modules of one's own, for the command line: ``weighbridge.benchmarks.coreml.modules:gated``."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from weighbridge.converters.models import Port, Signature

from .models import lively

Built = tuple[nn.Module, Signature]


def signature(inputs: dict[str, tuple[str, str]], width: int, limit: int = 64) -> Signature:
    """Return a signature of INPUTS, name -> dtype and role, and one output of WIDTH features."""
    shape, upper = ("batch", "sequence"), (("sequence", limit), ("vocabulary", 61))
    ports = tuple(
        Port(name, dtype, shape if dtype == "int64" else (*shape, width), role, upper)
        for name, (dtype, role) in inputs.items()
    )
    return Signature(ports, (Port("y", "float32", (*shape, width), "hidden"),))


class Attention(nn.Module):
    """Causal attention of heads of one size, scaled as torch does by default."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, sequence, width) to the same shape."""
        batch, length, width = x.shape
        q, k, v = (
            part.reshape(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(found.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Attention and a feed-forward part, each behind a gate: one number without axes."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention, self.up = Attention(width, heads), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width, bias=False)
        self.alpha, self.beta = (nn.Parameter(torch.tensor(value)) for value in (0.7, 1.0))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, sequence, width) to the same shape."""
        x = x + self.alpha * self.attention(self.norms[0](x))
        return x + self.beta * self.down(functional.gelu(self.up(self.norms[1](x))))


class Gated(nn.Module):
    """A small GPT of gated blocks."""

    def __init__(self, width: int = 24, heads: int = 3, limit: int = 64) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(61, width), nn.Embedding(limit, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(2))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (batch, sequence) to features."""
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class Recurrent(nn.Module):
    """Two layers of LSTM and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(3, 16, 2, batch_first=True), nn.Linear(16, 5)

    def forward(self, series: Tensor) -> Tensor:
        """Map (batch, 12, 3) to (batch, 12, 5)."""
        return self.head(self.lstm(series)[0])


class Heads(nn.Module):
    """One layer of attention on ids."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.tokens, self.attention = nn.Embedding(61, 2 * size), Attention(2 * size, 2)

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (batch, sequence) to features."""
        return self.attention(self.tokens(ids))


IDS = {"ids": ("int64", "token_ids")}


def gated() -> Built:
    """Return a GPT whose blocks are gated by numbers without axes."""
    torch.manual_seed(0)
    return lively(Gated()), signature(IDS, 24)


def lstm() -> Built:
    """Return a recurrent forecaster."""
    torch.manual_seed(0)
    shapes = (("batch", 12, 3), ("batch", 12, 5))
    ports = (Port(n, "float32", s, "series") for n, s in zip(("series", "y"), shapes, strict=True))
    entry, out = ports
    return lively(Recurrent()), Signature((entry,), (out,))


def _heads(size: int) -> Callable[[], Built]:
    def build() -> Built:
        torch.manual_seed(0)
        return lively(Heads(size)), signature(IDS, 2 * size)

    return build


heads8, heads16, heads32, heads64, heads128 = map(_heads, (8, 16, 32, 64, 128))


class Loud(nn.Module):
    """A linear layer whose outputs have squares beyond half precision, and a norm: zeros in it."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.up = nn.Embedding(61, 16), nn.Linear(16, 24)
        self.weight, self.head = nn.Parameter(torch.ones(24)), nn.Linear(24, 16)

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (batch, sequence) to features."""
        x = self.up(self.tokens(ids)) * 4000
        return self.head(x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * self.weight)


def loud() -> Built:
    """Return a module that overflows in half precision."""
    torch.manual_seed(0)
    return lively(Loud()), signature(IDS, 16)


def ungated() -> Built:
    """Return the gated GPT without its first gate."""
    module, described = gated()
    state = module.state_dict()
    other = Gated()
    other.load_state_dict(state)
    with torch.no_grad():
        other.blocks[0].alpha.fill_(1.0)
    return other.eval(), described
