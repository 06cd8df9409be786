"""Two towers, an image and a text transformer as in CLIP, in PyTorch and in MLX."""

from __future__ import annotations

from typing import Any

from weighbridge.converters.models import Port, Signature

from .shared import Freedom, perturb

CHANNELS, SIDE, PATCH, WORDS, POSITIONS, JOINT = 3, 24, 6, 53, 20, 28
SEEN, READ = (48, 4, 88, 3), (40, 5, 64, 2)  # hidden, heads, wide, layers
UPPER = (("sequence", POSITIONS), ("vocabulary", WORDS))
SIGNATURE = Signature(
    inputs=(
        Port("pixel_values", "float32", ("batch", CHANNELS, SIDE, SIDE), "pixels"),
        Port("input_ids", "int64", ("batch", "sequence"), "token_ids", UPPER),
    ),
    outputs=(
        Port("image_embeds", "float32", ("batch", JOINT), "hidden"),
        Port("text_embeds", "float32", ("batch", JOINT), "hidden"),
        Port("logits", "float32", ("batch", "batch"), "hidden"),
    ),
)
FREEDOM = Freedom(
    fuse=(),
    split=(
        ("vision.blocks.*.attention.in_proj", (SEEN[0],) * 3),
        ("text.blocks.*.attention.in_proj", (READ[0],) * 3),
    ),
    convolutions=("patches",),
)


def build() -> tuple[Any, Signature]:  # noqa: C901  # classes that belong together
    """Return the torch module and its signature."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Attention(nn.Module):
        def __init__(self, hidden: int, heads: int) -> None:
            super().__init__()
            self.in_proj = nn.Linear(hidden, 3 * hidden)
            self.out_proj = nn.Linear(hidden, hidden)
            self.heads = heads

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (
                y.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                for y in self.in_proj(x).chunk(3, -1)
            )
            weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)
            return self.out_proj((weights @ v).transpose(1, 2).flatten(2))

    class Block(nn.Module):
        def __init__(self, hidden: int, heads: int, wide: int) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
            self.attention = Attention(hidden, heads)
            self.fc1, self.fc2 = nn.Linear(hidden, wide), nn.Linear(wide, hidden)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + self.attention(self.norm1(x))
            return x + self.fc2(functional.gelu(self.fc1(self.norm2(x))))

    class Vision(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            hidden, heads, wide, layers = SEEN
            self.patches = nn.Conv2d(CHANNELS, hidden, PATCH, PATCH)
            self.class_token = nn.Parameter(torch.zeros(1, 1, hidden))
            self.positions = nn.Parameter(torch.zeros(1, (SIDE // PATCH) ** 2 + 1, hidden))
            self.blocks = nn.ModuleList(Block(hidden, heads, wide) for _ in range(layers))
            self.norm = nn.LayerNorm(hidden)

        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            x = self.patches(pixels).flatten(2).transpose(1, 2)
            x = torch.cat([self.class_token.expand(len(x), 1, -1), x], 1) + self.positions
            for block in self.blocks:
                x = block(x)
            return self.norm(x)[:, 0]

    class Text(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            hidden, heads, wide, layers = READ
            self.embed = nn.Embedding(WORDS, hidden)
            self.positions = nn.Parameter(torch.zeros(POSITIONS, hidden))
            self.blocks = nn.ModuleList(Block(hidden, heads, wide) for _ in range(layers))
            self.norm = nn.LayerNorm(hidden)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.embed(ids) + self.positions[: ids.shape[1]]
            for block in self.blocks:
                x = block(x)
            return self.norm(x)[:, -1]

    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vision, self.text = Vision(), Text()
            self.vision_proj = nn.Linear(SEEN[0], JOINT, bias=False)
            self.text_proj = nn.Linear(READ[0], JOINT, bias=False)
            self.logit_scale = nn.Parameter(torch.ones(()))

        def forward(self, pixel_values: torch.Tensor, input_ids: torch.Tensor) -> Any:
            image = functional.normalize(self.vision_proj(self.vision(pixel_values)), dim=-1)
            text = functional.normalize(self.text_proj(self.text(input_ids)), dim=-1)
            return image, text, self.logit_scale.exp() * image @ text.T

    return perturb(Towers(), 5), SIGNATURE


def build_mlx() -> tuple[Any, Signature]:  # noqa: C901
    """Return the MLX module and its signature."""
    import mlx.core as mx
    from mlx import nn

    def unit(x: mx.array) -> mx.array:
        return x / mx.maximum(mx.linalg.norm(x, axis=-1, keepdims=True), 1e-12)

    class Attention(nn.Module):
        def __init__(self, hidden: int, heads: int) -> None:
            super().__init__()
            self.in_proj = nn.Linear(hidden, 3 * hidden)
            self.out_proj = nn.Linear(hidden, hidden)
            self._heads = heads

        def __call__(self, x: mx.array) -> mx.array:
            q, k, v = (
                y.reshape(*x.shape[:2], self._heads, -1).swapaxes(1, 2)
                for y in mx.split(self.in_proj(x), 3, -1)
            )
            weights = mx.softmax(q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5, axis=-1)
            return self.out_proj((weights @ v).swapaxes(1, 2).reshape(x.shape))

    class Block(nn.Module):
        def __init__(self, hidden: int, heads: int, wide: int) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
            self.attention = Attention(hidden, heads)
            self.fc1, self.fc2 = nn.Linear(hidden, wide), nn.Linear(wide, hidden)

        def __call__(self, x: mx.array) -> mx.array:
            x = x + self.attention(self.norm1(x))
            return x + self.fc2(nn.gelu(self.fc1(self.norm2(x))))

    class Vision(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            hidden, heads, wide, layers = SEEN
            self.patches = nn.Conv2d(CHANNELS, hidden, PATCH, PATCH)
            self.class_token = mx.zeros((1, 1, hidden))
            self.positions = mx.zeros((1, (SIDE // PATCH) ** 2 + 1, hidden))
            self.blocks = [Block(hidden, heads, wide) for _ in range(layers)]
            self.norm = nn.LayerNorm(hidden)

        def __call__(self, pixels: mx.array) -> mx.array:
            x = self.patches(pixels.transpose(0, 2, 3, 1)).flatten(1, 2)
            token = mx.broadcast_to(self.class_token, (len(x), 1, x.shape[-1]))
            x = mx.concatenate([token, x], 1) + self.positions
            for block in self.blocks:
                x = block(x)
            return self.norm(x)[:, 0]

    class Text(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            hidden, heads, wide, layers = READ
            self.embed = nn.Embedding(WORDS, hidden)
            self.positions = mx.zeros((POSITIONS, hidden))
            self.blocks = [Block(hidden, heads, wide) for _ in range(layers)]
            self.norm = nn.LayerNorm(hidden)

        def __call__(self, ids: mx.array) -> mx.array:
            x = self.embed(ids) + self.positions[: ids.shape[1]]
            for block in self.blocks:
                x = block(x)
            return self.norm(x)[:, -1]

    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vision, self.text = Vision(), Text()
            self.vision_proj = nn.Linear(SEEN[0], JOINT, bias=False)
            self.text_proj = nn.Linear(READ[0], JOINT, bias=False)
            self.logit_scale = mx.ones(())

        def __call__(self, pixel_values: mx.array, input_ids: mx.array) -> Any:
            image = unit(self.vision_proj(self.vision(pixel_values)))
            text = unit(self.text_proj(self.text(input_ids)))
            return image, text, mx.exp(self.logit_scale) * image @ text.T

    return Towers(), SIGNATURE
