"""A selective state-space decoder (as Mamba), in PyTorch and in MLX."""

from __future__ import annotations

from typing import Any

from weighbridge.converters.models import Port, Signature

from .shared import Freedom, perturb

WORDS, HIDDEN, INNER, STATE, RANK, WIDTH, LAYERS = 59, 36, 72, 6, 5, 4, 3
UPPER = (("sequence", 32), ("vocabulary", WORDS))
SIGNATURE = Signature(
    inputs=(Port("input_ids", "int64", ("batch", "sequence"), "token_ids", UPPER),),
    outputs=(Port("logits", "float32", ("batch", "sequence", WORDS), "hidden"),),
)
FREEDOM = Freedom(
    split=(
        ("layers.*.mixer.in_proj", (INNER, INNER)),
        ("layers.*.mixer.x_proj", (RANK, STATE, STATE)),
    ),
    convolutions=("conv1d",),
)


def build() -> tuple[Any, Signature]:  # noqa: C901  # classes that belong together
    """Return the torch module and its signature."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.in_proj = nn.Linear(HIDDEN, 2 * INNER, bias=False)
            self.conv1d = nn.Conv1d(INNER, INNER, WIDTH, groups=INNER, padding=WIDTH - 1)
            self.x_proj = nn.Linear(INNER, RANK + 2 * STATE, bias=False)
            self.dt_proj = nn.Linear(RANK, INNER)
            self.A_log = nn.Parameter(torch.zeros(INNER, STATE))
            self.D = nn.Parameter(torch.ones(INNER))
            self.out_proj = nn.Linear(INNER, HIDDEN, bias=False)

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            length = hidden.shape[1]
            x, z = self.in_proj(hidden).chunk(2, -1)
            x = functional.silu(self.conv1d(x.transpose(1, 2))[..., :length].transpose(1, 2))
            step, b, c = self.x_proj(x).split((RANK, STATE, STATE), -1)
            step = functional.softplus(self.dt_proj(step))
            decay = torch.exp(step[..., None] * -torch.exp(self.A_log))
            added = (step * x)[..., None] * b[:, :, None]
            state, outputs = torch.zeros_like(added[:, 0]), []
            for at in range(length):
                state = decay[:, at] * state + added[:, at]
                outputs.append((state * c[:, at, None]).sum(-1))
            y = torch.stack(outputs, 1) + self.D * x
            return self.out_proj(y * functional.silu(z))

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.RMSNorm(HIDDEN, 1e-6)
            self.mixer = Mixer()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.mixer(self.norm(x))

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embeddings = nn.Embedding(WORDS, HIDDEN)
            self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
            self.norm_f = nn.RMSNorm(HIDDEN, 1e-6)
            self.lm_head = nn.Linear(HIDDEN, WORDS, bias=False)

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            x = self.embeddings(input_ids)
            for layer in self.layers:
                x = layer(x)
            return self.lm_head(self.norm_f(x))

    return perturb(Decoder(), 4), SIGNATURE


def build_mlx() -> tuple[Any, Signature]:  # noqa: C901
    """Return the MLX module and its signature."""
    import mlx.core as mx
    from mlx import nn

    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.in_proj = nn.Linear(HIDDEN, 2 * INNER, bias=False)
            self.conv1d = nn.Conv1d(INNER, INNER, WIDTH, groups=INNER, padding=WIDTH - 1)
            self.x_proj = nn.Linear(INNER, RANK + 2 * STATE, bias=False)
            self.dt_proj = nn.Linear(RANK, INNER)
            self.A_log = mx.zeros((INNER, STATE))
            self.D = mx.ones(INNER)
            self.out_proj = nn.Linear(INNER, HIDDEN, bias=False)

        def __call__(self, hidden: mx.array) -> mx.array:
            length = hidden.shape[1]
            x, z = mx.split(self.in_proj(hidden), 2, -1)
            x = nn.silu(self.conv1d(x)[:, :length])
            step, b, c = mx.split(self.x_proj(x), (RANK, RANK + STATE), -1)
            step = nn.softplus(self.dt_proj(step))
            decay = mx.exp(step[..., None] * -mx.exp(self.A_log))
            added = (step * x)[..., None] * b[:, :, None]
            state, outputs = mx.zeros_like(added[:, 0]), []
            for at in range(length):
                state = decay[:, at] * state + added[:, at]
                outputs.append((state * c[:, at, None]).sum(-1))
            y = mx.stack(outputs, 1) + self.D * x
            return self.out_proj(y * nn.silu(z))

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.RMSNorm(HIDDEN, 1e-6)
            self.mixer = Mixer()

        def __call__(self, x: mx.array) -> mx.array:
            return x + self.mixer(self.norm(x))

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embeddings = nn.Embedding(WORDS, HIDDEN)
            self.layers = [Layer() for _ in range(LAYERS)]
            self.norm_f = nn.RMSNorm(HIDDEN, 1e-6)
            self.lm_head = nn.Linear(HIDDEN, WORDS, bias=False)

        def __call__(self, input_ids: mx.array) -> mx.array:
            x = self.embeddings(input_ids)
            for layer in self.layers:
                x = layer(x)
            return self.lm_head(self.norm_f(x))

    return Decoder(), SIGNATURE
