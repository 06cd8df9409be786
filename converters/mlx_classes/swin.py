"""Swin: a vision transformer whose attention looks at windows, every other time shifted by half of one."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
from mlx import nn

from .layers import (
    Args,
    Outputs,
    Weights,
    activation,
    attention,
    head_of,
    labels_of,
    sides,
    without,
)

EPS = 1e-5  # of the norms outside of layers, whatever the configuration says
HIDDEN = -100.0  # what a score gets where two patches were neighbours by the shift alone


@dataclass
class ModelArgs(Args):
    """The configuration; see transformers' ``SwinConfig``."""

    depths: list[int]
    num_heads: list[int]
    embed_dim: int = 96
    window_size: int = 7
    image_size: int | list[int] = 224
    patch_size: int | list[int] = 4
    num_channels: int = 3
    mlp_ratio: float = 4.0
    qkv_bias: bool = True
    hidden_act: str = "gelu"
    use_absolute_embeddings: bool = False
    layer_norm_eps: float = 1e-5
    id2label: dict[str, str] | None = None
    num_labels: int | None = None
    architectures: list[str] | None = None


def places(window: int) -> mx.array:
    """Return which row of a table of relative positions each pair of patches in a WINDOW has, ``[pairs]``."""
    rows, columns = (it.flatten() for it in mx.meshgrid(*[mx.arange(window)] * 2, indexing="ij"))
    down, right = (it[:, None] - it[None] + window - 1 for it in (rows, columns))
    return (down * (2 * window - 1) + right).flatten()


def regions(size: int, window: int, shift: int) -> mx.array:
    """Return in which of three parts each of SIZE rows is, of which two met by the SHIFT, ``[size]``."""
    at = mx.arange(size)
    return (at >= size - window).astype(mx.int32) + (at >= size - shift).astype(mx.int32)


def rolled(x: mx.array, by: int) -> mx.array:
    """Return X, ``[batch, rows, columns, width]``, with its rows and its columns BY so many further."""
    return mx.roll(mx.roll(x, by, 1), by, 2)


class SelfAttention(nn.Module):
    """What each patch gathers from the others of its window."""

    def __init__(self, args: ModelArgs, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.window, self.scale = heads, args.window_size, (width // heads) ** -0.5
        self.query = nn.Linear(width, width, bias=args.qkv_bias)
        self.key = nn.Linear(width, width, bias=args.qkv_bias)
        self.value = nn.Linear(width, width, bias=args.qkv_bias)
        self.relative_position_bias_table = mx.zeros(((2 * args.window_size - 1) ** 2, heads))

    def __call__(self, x: mx.array, mask: mx.array | None) -> mx.array:
        patches = self.window**2
        near = self.relative_position_bias_table[places(self.window)]
        added = near.reshape(patches, patches, self.heads).transpose(2, 0, 1)[None]
        if mask is not None:
            added = added + mx.tile(mask[:, None], (len(x) // len(mask), 1, 1, 1))
        return attention(self.query(x), self.key(x), self.value(x), self.heads, self.scale, added)


class Dense(nn.Module):
    """A linear layer, under the name that the checkpoints have."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, outputs)

    def __call__(self, x: mx.array) -> mx.array:
        return self.dense(x)


class Attention(nn.Module):
    """Attention and its output layer."""

    def __init__(self, args: ModelArgs, width: int, heads: int) -> None:
        super().__init__()
        self["self"] = SelfAttention(args, width, heads)  # a name of the checkpoints
        self.output = Dense(width, width)

    def __call__(self, x: mx.array, mask: mx.array | None) -> mx.array:
        return self.output(self["self"](x, mask))


class Block(nn.Module):
    """Attention within windows and feed-forward, each behind its norm."""

    def __init__(self, args: ModelArgs, width: int, heads: int, *, shifted: bool) -> None:
        super().__init__()
        wide = int(args.mlp_ratio * width)
        self.window, self.shift = args.window_size, args.window_size // 2 if shifted else 0
        self.attention = Attention(args, width, heads)
        self.intermediate = Dense(width, wide)
        self.output = Dense(wide, width)
        self.layernorm_before = nn.LayerNorm(width, args.layer_norm_eps)
        self.layernorm_after = nn.LayerNorm(width, args.layer_norm_eps)
        self.act = activation(args.hidden_act)

    def __call__(self, x: mx.array) -> mx.array:
        x = x + self.gathered(self.layernorm_before(x))
        return x + self.output(self.act(self.intermediate(self.layernorm_after(x))))

    def gathered(self, x: mx.array) -> mx.array:
        """Return what the patches of X, ``[batch, rows, columns, width]``, gather."""
        batch, rows, columns, width = x.shape
        window, shift = self.window, self.shift if min(rows, columns) > self.window else 0
        x = mx.pad(x, [(0, 0), (0, -rows % window), (0, -columns % window), (0, 0)])
        high, wide = x.shape[1:3]
        mask = self.mask(high, wide, shift) if shift else None
        found = self.attention(self.windows(rolled(x, -shift)), mask)
        found = found.reshape(batch, high // window, wide // window, window, window, width)
        found = found.transpose(0, 1, 3, 2, 4, 5).reshape(batch, high, wide, width)
        return rolled(found, shift)[:, :rows, :columns]

    def windows(self, x: mx.array) -> mx.array:
        """Return the windows of X, ``[batch * windows, patches, width]``."""
        batch, rows, columns, width = x.shape
        size = self.window
        cut = x.reshape(batch, rows // size, size, columns // size, size, width)
        return cut.transpose(0, 1, 3, 2, 4, 5).reshape(-1, size * size, width)

    def mask(self, rows: int, columns: int, shift: int) -> mx.array:
        """Return what is added to scores between patches of other regions, ``[windows, patches, patches]``."""
        down, right = (regions(it, self.window, shift) for it in (rows, columns))
        part = self.windows((down[:, None] * 3 + right[None])[None, :, :, None])[..., 0]
        return mx.where(part[:, None] != part[:, :, None], HIDDEN, 0.0)


class Merging(nn.Module):
    """Four neighbours become one patch of twice the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * width, EPS)
        self.reduction = nn.Linear(4 * width, 2 * width, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        x = mx.pad(x, [(0, 0), (0, x.shape[1] % 2), (0, x.shape[2] % 2), (0, 0)])
        parts = [x[:, row::2, column::2] for column in range(2) for row in range(2)]
        return self.reduction(self.norm(mx.concatenate(parts, axis=-1)))


class Stage(nn.Module):
    """Blocks of one width, and what leads to the next stage."""

    def __init__(self, args: ModelArgs, number: int) -> None:
        super().__init__()
        width, heads = args.embed_dim * 2**number, args.num_heads[number]
        shifts = [bool(it % 2) for it in range(args.depths[number])]
        self.blocks = [Block(args, width, heads, shifted=it) for it in shifts]
        if number < len(args.depths) - 1:
            self.downsample = Merging(width)

    def __call__(self, x: mx.array) -> mx.array:
        for block in self.blocks:
            x = block(x)
        return self.downsample(x) if "downsample" in self else x


class PatchEmbeddings(nn.Module):
    """Patches of an image, from a convolution; its edges are filled up with zeros."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.size = sides(args.patch_size)
        self.projection = nn.Conv2d(args.num_channels, args.embed_dim, self.size, stride=self.size)

    def __call__(self, x: mx.array) -> mx.array:
        rows, columns = (-it % part for it, part in zip(x.shape[1:3], self.size, strict=True))
        return self.projection(mx.pad(x, [(0, 0), (0, rows), (0, columns), (0, 0)]))


class Embeddings(nn.Module):
    """Patches, and their positions where the configuration asks for them."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.patch_embeddings = PatchEmbeddings(args)
        self.norm = nn.LayerNorm(args.embed_dim, EPS)
        if args.use_absolute_embeddings:
            (height, width), patch = sides(args.image_size), sides(args.patch_size)
            patches = (height // patch[0]) * (width // patch[1])
            self.position_embeddings = mx.zeros((1, patches, args.embed_dim))

    def __call__(self, x: mx.array) -> mx.array:
        x = self.norm(self.patch_embeddings(x))
        if "position_embeddings" not in self:
            return x
        return x + self.position_embeddings.reshape(1, *x.shape[1:])


class Encoder(nn.Module):
    """The stages."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.layers = [Stage(args, number) for number in range(len(args.depths))]

    def __call__(self, x: mx.array) -> mx.array:
        for stage in self.layers:
            x = stage(x)
        return x


class Model(nn.Module):
    """Swin, with a classifier or without."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        width = args.embed_dim * 2 ** (len(args.depths) - 1)
        self.embeddings = Embeddings(args)
        self.encoder = Encoder(args)
        self.layernorm = nn.LayerNorm(width, args.layer_norm_eps)
        if head_of(args.architectures) == "ForImageClassification":
            self.classifier = nn.Linear(width, labels_of(args.id2label, args.num_labels))

    def sanitize(self, weights: Weights) -> Weights:
        """Return WEIGHTS by the names of the bare model; the token of masked patches is left out."""
        found = without(weights, "embeddings.mask_token", prefix="swin.")
        return {k: v for k, v in found.items() if not k.endswith("relative_position_index")}

    def __call__(self, pixel_values: mx.array) -> Outputs:
        x = self.layernorm(self.encoder(self.embeddings(pixel_values.transpose(0, 2, 3, 1))))
        pooled = x.mean(1).mean(1)  # rows, then columns: short sums err less
        if "classifier" in self:
            return {"logits": self.classifier(pooled)}
        return {"last_hidden_state": x.flatten(1, 2), "pooler_output": pooled}
