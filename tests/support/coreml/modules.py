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
    """Two layers of LSTM, of one direction or of both, and a head."""

    def __init__(self, *, both: bool = False) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 16, 2, batch_first=True, bidirectional=both)
        self.head = nn.Linear(32 if both else 16, 5)

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


class Series(nn.Module):
    """A recurrent layer, or a convolution that sees only what came before, and a head."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.layer = (
            nn.Conv1d(3, 16, 3, padding=2, dilation=1)
            if kind == "Conv1d"
            else getattr(nn, kind)(3, 16, 2, batch_first=True)
        )
        self.norm, self.head = nn.BatchNorm1d(16), nn.Linear(16, 5)

    def forward(self, series: Tensor) -> Tensor:
        """Map (batch, time, 3) to (batch, time, 5)."""
        if self.kind == "Conv1d":
            found = self.layer(series.transpose(1, 2))[..., : series.shape[1]]
        else:
            found = self.layer(series)[0].transpose(1, 2)
        return self.head(functional.gelu(self.norm(found)).transpose(1, 2))


class Joined(nn.Module):
    """Three projections that are one product."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(16, size) for size in (16, 8, 8))
        self.head = nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, sequence, 16) to the same shape."""
        weight, bias = (
            torch.cat([getattr(it, n) for it in self.parts]) for n in ("weight", "bias")
        )
        return self.head(functional.gelu(functional.linear(x, weight, bias)))


class Pooled(nn.Module):
    """A convolution whose weight is kept as a direction and its norms, and attention of one learned query."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.utils.parametrizations.weight_norm(nn.Conv1d(16, 16, 3, padding=1), dim=2)
        self.query, self.heads = nn.Parameter(torch.ones(1, 1, 16)), nn.MultiheadAttention(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 9, 16) to (batch, 16)."""
        found = functional.gelu(self.layer(x.transpose(1, 2))).permute(2, 0, 1)
        query = self.query.expand(1, x.shape[0], 16)
        return self.heads(query, found, found, need_weights=False)[0][0]


class Tempered(nn.Module):
    """Cosines of all pairs, times the exponential of a number, as CLIP scores texts and pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.scale = nn.Linear(16, 8), nn.Parameter(torch.tensor(2.6592))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, sequence, 16) to (batch, sequence, sequence)."""
        found = functional.normalize(self.project(x), dim=-1)
        return found @ found.transpose(1, 2) * self.scale.exp()


class UNet(nn.Module):
    """Two levels of convolutions, pooled and brought back, with what was there put beside."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 12, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(12, 8, 2, stride=2), nn.Conv2d(16, 4, 3, padding=1)
        self.norms = nn.ModuleList((nn.GroupNorm(2, 8), nn.BatchNorm2d(12)))

    def forward(self, image: Tensor) -> Tensor:
        """Map (batch, 3, 16, 16) to (batch, 4, 16, 16)."""
        wide = functional.silu(self.norms[0](self.first(image)))
        deep = functional.silu(self.norms[1](self.second(functional.max_pool2d(wide, 2))))
        return self.last(torch.cat([self.up(deep), wide], 1))


class Normed(nn.Module):
    """Two convolutions, one with a bias, each with a batch norm behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv2d(size, 8, 3, padding=1, bias=bool(it)) for it, size in enumerate((3, 8))
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(2))
        self.head = nn.Linear(8, 5)

    def forward(self, image: Tensor) -> Tensor:
        """Map (batch, 3, 16, 16) to (batch, 5)."""
        for conv, norm in zip(self.convs, self.norms, strict=True):
            image = functional.relu(norm(conv(image)))
        return self.head(image.mean((2, 3)))


IDS = {"ids": ("int64", "token_ids")}


def joined() -> Built:
    """Return three projections as one."""
    torch.manual_seed(0)
    return lively(Joined()), signature({"x": ("float32", "hidden")}, 16)


def pooled() -> Built:
    """Return attention whose joined biases are zeros, as PyTorch makes them, behind a normed weight."""
    torch.manual_seed(0)
    module = lively(Pooled())
    nn.init.zeros_(module.heads.in_proj_bias)
    entry, out = (
        Port(name, "float32", ("batch", *shape), "hidden")
        for name, shape in (("x", (9, 16)), ("y", (16,)))
    )
    return module, Signature((entry,), (out,))


def tempered() -> Built:
    """Return scores of pairs."""
    torch.manual_seed(0)
    entry, out = (
        Port(name, "float32", ("batch", "sequence", width), "hidden", (("sequence", 7),))
        for name, width in (("x", 16), ("scores", "sequence"))
    )
    return lively(Tempered()), Signature((entry,), (out,))


def gated() -> Built:
    """Return a GPT whose blocks are gated by numbers without axes."""
    torch.manual_seed(0)
    return lively(Gated()), signature(IDS, 24)


def lstm(*, both: bool = False) -> Built:
    """Return a recurrent forecaster."""
    torch.manual_seed(0)
    shapes = (("batch", 12, 3), ("batch", 12, 5))
    ports = (Port(n, "float32", s, "series") for n, s in zip(("series", "y"), shapes, strict=True))
    entry, out = ports
    return lively(Recurrent(both=both)), Signature((entry,), (out,))


def two_ways() -> Built:
    """Return a recurrent forecaster that reads its series from both ends."""
    return lstm(both=True)


def _series(kind: str, time: int | str) -> Callable[[], Built]:
    def build() -> Built:
        torch.manual_seed(0)
        shapes = (("batch", time, 3), ("batch", time, 5))
        upper = (("time", 24),)
        entry, out = (
            Port(n, "float32", s, "series", upper)
            for n, s in zip(("series", "y"), shapes, strict=True)
        )
        return lively(Series(kind)), Signature((entry,), (out,))

    return build


gru, rnn, conv1d = (_series(kind, 12) for kind in ("GRU", "RNN", "Conv1d"))
long_lstm, long_gru, long_rnn, long_conv1d = (
    _series(kind, "time") for kind in ("LSTM", "GRU", "RNN", "Conv1d")
)


def unet() -> Built:
    """Return a small U-Net."""
    torch.manual_seed(0)
    entry, out = (
        Port(n, "float32", ("batch", c, 16, 16), "pixels") for n, c in (("image", 3), ("mask", 4))
    )
    return lively(UNet()), Signature((entry,), (out,))


def normed() -> Built:
    """Return a small network of convolutions and batch norms."""
    torch.manual_seed(0)
    entry, out = (
        Port(n, "float32", ("batch", *shape), role)
        for n, shape, role in (("image", (3, 16, 16), "pixels"), ("scores", (5,), "logits"))
    )
    return lively(Normed()), Signature((entry,), (out,))


def _images(name: str, side: int, outputs: dict[str, tuple[int | str, ...]], **sizes: object):
    def build() -> Built:
        import transformers

        torch.manual_seed(0)
        config = getattr(transformers, f"{name}Config")(image_size=side, **sizes)
        entry = Port("pixel_values", "float32", ("batch", 3, side, side), "pixels")
        ports = (Port(n, "float32", ("batch", *shape), "hidden") for n, shape in outputs.items())
        return lively(getattr(transformers, f"{name}Model")(config)), Signature((entry,), (*ports,))

    return build


HIDDEN = "last_hidden_state"
SMALL = {
    "hidden_size": 20,
    "intermediate_size": 36,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
dinov2 = _images("Dinov2", 12, {HIDDEN: (10, 20)}, patch_size=4, mlp_ratio=2, **SMALL)
dinov2_pooled = _images(
    "Dinov2", 12, {HIDDEN: (10, 20), "pooler_output": (20,)}, patch_size=4, mlp_ratio=2, **SMALL
)
siglip = _images(
    "SiglipVision", 12, {HIDDEN: (9, 20), "pooler_output": (20,)}, patch_size=4, **SMALL
)
swin = _images(
    "Swin", 32, {HIDDEN: (16, 24)}, patch_size=4, embed_dim=12, depths=[2, 2], num_heads=[2, 3],
    window_size=4,
)  # fmt: skip
segformer = _images(
    "Segformer", 32, {HIDDEN: (24, 4, 4)}, num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1],
    hidden_sizes=[12, 24], patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[1, 2],
    mlp_ratios=[2, 2],
)  # fmt: skip
mobilenet = _images("MobileNetV2", 32, {HIDDEN: (1280, 1, 1)}, depth_multiplier=0.25)


def _heads(size: int) -> Callable[[], Built]:
    def build() -> Built:
        torch.manual_seed(0)
        return lively(Heads(size)), signature(IDS, 2 * size)

    return build


heads8, heads16, heads32, heads64, heads128 = map(_heads, (8, 16, 32, 64, 128))


class Strange(nn.Module):
    """A layer behind which a function stands that no format has."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, sequence, 16) to the same shape."""
        return torch.polygamma(1, self.layer(x).abs() + 1)


def strange() -> Built:
    """Return a module with an operation that cannot be exported."""
    torch.manual_seed(0)
    return lively(Strange()), signature({"x": ("float32", "hidden")}, 16)


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
