"""Networks that no library brings: a diffusion UNet, classifiers of packed sequences, and others."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional


class _Residual(nn.Module):
    """Two convolutions that are told the time, beside a shortcut (Ho et al. 2020, appendix B)."""

    def __init__(self, entering: int, leaving: int, time: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(4, entering), nn.GroupNorm(4, leaving)])
        self.first = nn.Conv2d(entering, leaving, 3, padding=1)
        self.second = nn.Conv2d(leaving, leaving, 3, padding=1)
        self.time = nn.Linear(time, leaving)
        self.shortcut = nn.Conv2d(entering, leaving, 1) if entering != leaving else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """Return X changed as TIME says."""
        y = self.first(functional.silu(self.norms[0](x)))
        y = y + self.time(functional.silu(time))[:, :, None, None]
        return self.second(functional.silu(self.norms[1](y))) + self.shortcut(x)


class _Attention(nn.Module):
    """Attention among the places of an image."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, channels)
        self.projection = nn.Conv1d(channels, 3 * channels, 1)
        self.out = nn.Conv1d(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return X with what its places attend to added."""
        batch, channels, height, width = x.shape
        flat = self.projection(self.norm(x).flatten(2)).transpose(1, 2)
        q, k, v = flat.unflatten(-1, (3, 2, channels // 2)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v).transpose(2, 3)
        return x + self.out(attended.reshape(batch, channels, -1)).view(
            batch, channels, height, width
        )


class DiffusionUNet(nn.Module):
    """A UNet that predicts noise from an image and a time, with attention in its middle."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, 16, 3, padding=1)
        self.embed = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))
        self.down = nn.ModuleList([_Residual(16, 16, 32), _Residual(16, 24, 32)])
        self.shrink = nn.Conv2d(24, 24, 3, stride=2, padding=1)
        self.middle = _Residual(24, 24, 32)
        self.attention = _Attention(24)
        self.grow = nn.Conv2d(24, 24, 3, padding=1)
        self.up = _Residual(48, 16, 32)
        self.leave = nn.Sequential(nn.GroupNorm(4, 16), nn.SiLU(), nn.Conv2d(16, 3, 3, padding=1))

    def forward(self, sample: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """Return the noise in SAMPLE at TIME, shape ``(batch,)``."""
        angles = time[:, None] * torch.exp(torch.arange(8) * (-math.log(1e4) / 8))
        clock = self.embed(torch.cat([angles.sin(), angles.cos()], -1))
        x = self.enter(sample)
        for block in self.down:
            x = block(x, clock)
        low = self.attention(self.middle(self.shrink(x), clock))
        low = self.grow(functional.interpolate(low, scale_factor=2.0, mode="nearest"))
        return self.leave(self.up(torch.cat([x, low], 1), clock))


def packed(layer: type[nn.RNNBase]) -> type[nn.Module]:
    """Return a classifier whose LAYER reads sequences of several lengths, packed."""

    class Classifier(nn.Module):
        """Reads series of 9 and 6 steps and classifies by the last state."""

        def __init__(self) -> None:
            super().__init__()
            self.read = layer(5, 12, num_layers=2, batch_first=True, bidirectional=True)
            self.classify = nn.Linear(24, 4)

        def forward(self, series: torch.Tensor) -> torch.Tensor:
            """Return the scores of four classes."""
            rows = nn.utils.rnn.pack_padded_sequence(series, torch.tensor([9, 6]), batch_first=True)
            _, state = self.read(rows)
            hidden = state[0] if isinstance(state, tuple) else state
            return self.classify(hidden[-2:].transpose(0, 1).flatten(1))

    return Classifier


class Translator(nn.Module):
    """torch's own encoder-decoder with a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Transformer(16, 4, 2, 2, 24, batch_first=True, norm_first=True)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the decoder's hidden states."""
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.inner(source, target, tgt_mask=mask)


class SpatialTransformer(nn.Module):
    """Finds an affine map of its image, samples there, and classifies (Jaderberg et al. 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.find = nn.Sequential(
            nn.Conv2d(3, 8, 5), nn.MaxPool2d(2), nn.ReLU(), nn.AdaptiveMaxPool2d(3), nn.Flatten()
        )
        self.map = nn.Linear(72, 6)
        self.read = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
        )
        self.classify = nn.Linear(32, 4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the scores of four classes."""
        theta = self.map(self.find(images)).view(-1, 2, 3) * 0.2 + torch.eye(2, 3)
        grid = functional.affine_grid(theta, images.shape, align_corners=False)
        return self.classify(self.read(functional.grid_sample(images, grid, align_corners=False)))
