"""A forecaster around a language model that stays as it is: patches of a series take the place of tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...converters.maps.sources.torch_blocks import torch_blocks
from ...converters.maps.sources.torch_side import with_torch_side
from ...converters.models.signature import Port, Signature
from ...converters.planning.opening import open as open_model
from ...converters.planning.transcoding import quantized_view
from ...converters.quantization.blocks import Blocks
from ...converters.runtimes.torch import build_module
from ..bundled import located, provide


class TimeSeriesLM(nn.Module):
    """A patch encoder, a projector, a frozen decoder and a head.

    Args:
        decoder: a base model of transformers that takes ``inputs_embeds``.
        channels: of the series.
        patch: values of a patch; patches do not overlap.
        width: of the encoder.
        outputs: numbers that the head gives: values of the forecast, or classes.

    Attributes:
        quantized: weights of the decoder that lie in codes, by parameter; MLX computes with these.
        signature: what an exported module takes and gives, where the length of a series is known.
    """

    def __init__(
        self, decoder: nn.Module, *, channels: int, patch: int, width: int, outputs: int
    ) -> None:
        super().__init__()
        hidden = int(decoder.config.hidden_size)  # type: ignore[union-attr, arg-type]  # of transformers
        self.encoder = nn.Conv1d(channels, width, patch, stride=patch)
        self.projector = nn.Linear(width, hidden)
        self.decoder = decoder.requires_grad_(False)
        self.head = nn.Linear(hidden, outputs)
        self.quantized: dict[str, Blocks] = {}
        self.signature: Signature | None = None

    def forward(self, series: Tensor) -> Tensor:
        """Return the forecast, shape ``(batch, outputs)``, of SERIES, shape ``(batch, channels, values)``."""
        patches = functional.gelu(self.encoder(series)).transpose(1, 2)
        found = self.decoder(inputs_embeds=self.projector(patches), use_cache=False)
        forecast: Tensor = self.head(found.last_hidden_state[:, -1])
        return forecast


def build(  # noqa: PLR0913 - each is an option of the configuration
    *,
    decoder: str,
    channels: int = 1,
    patch: int = 8,
    width: int = 32,
    outputs: int = 16,
    values: int | None = None,
    seed: int = 0,
) -> nn.Module:
    """Return a forecaster around the DECODER, whose codes stay codes in MLX.

    Args:
        decoder: directory of a causal language model, quantized or not, in MLX's or PyTorch's layout.
        channels: of the series.
        patch: values of a patch.
        width: of the encoder.
        outputs: values of the forecast.
        values: of a series of one channel, which exports need to know.
        seed: of what is trained.
    """
    path = located(decoder)
    provide([path])
    model = quantized_view(open_model(str(Path(path))))
    whole: Any = build_module(with_torch_side(model))
    base = whole.model
    base.embed_tokens = nn.Identity()  # patches take the place of tokens
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        module = TimeSeriesLM(base, channels=channels, patch=patch, width=width, outputs=outputs)
    module.signature = _signature(channels, values, outputs) if values else None
    there = dict(module.named_parameters())
    names = {
        f"decoder.{name.removeprefix('model.')}": it
        for name, it in torch_blocks(model).blocks.items()
    }
    module.quantized = {name: it for name, it in names.items() if name in there}
    return module


def _signature(channels: int, values: int, outputs: int) -> Signature:
    series = Port("series", "float32", ("batch", channels, values), "series")
    return Signature((series,), (Port("forecast", "float32", ("batch", outputs), "series"),))
