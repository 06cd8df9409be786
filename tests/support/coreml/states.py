"""A decoder with states as Apple's recipe for language models makes it: torch.jit.trace and coremltools alone.

Its inputs are token ids and a mask that is added to scores, its states all keys and all values (Apple, "On
Device Llama 3.1 with Core ML").
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from weighbridge.converters.captures.mlprogram.toolkit import coremltools, quiet

from .foreign import with_older_numpy
from .modules import Attention, Gated

LIMIT = 64  # tokens
NAMES = ("keyCache", "valueCache")


class Decoder(nn.Module):
    """A gated GPT that keeps keys and values in buffers; BEHIND is how many places too far on it writes them."""

    def __init__(self, model: Gated, *, behind: int = 0) -> None:
        super().__init__()
        self.model, self.behind = model, behind
        attention = model.blocks[0].attention
        width = attention.out.weight.shape[0] // attention.heads
        for name in NAMES:
            kept = torch.zeros(len(model.blocks), 1, attention.heads, LIMIT + behind, width)
            self.register_buffer(name, kept)

    def attend(self, index: int, attention: Attention, x: Tensor, mask: Tensor) -> Tensor:
        """Attend to all tokens that were read, these among them."""
        batch, length, width = x.shape
        end = mask.shape[-1]
        q, *new = (
            part.reshape(batch, length, attention.heads, -1).transpose(1, 2)
            for part in attention.qkv(x).chunk(3, -1)
        )
        for name, values in zip(NAMES, new, strict=True):
            places = slice(end - length + self.behind, end + self.behind)
            getattr(self, name)[index, :, :, places] = values
        k, v = (getattr(self, name)[index, :, :, :end] for name in NAMES)
        scores = q @ k.transpose(-1, -2) * (width // attention.heads) ** -0.5 + mask
        found = scores.softmax(-1) @ v
        return attention.out(found.transpose(1, 2).reshape(batch, length, width))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Map ids (1, tokens) and a mask (1, 1, tokens, all tokens so far) to features."""
        model, end = self.model, mask.shape[-1]
        x = model.tokens(ids) + model.places(torch.arange(end - ids.shape[1], end))
        for index, it in enumerate(model.blocks):
            x = x + it.alpha * self.attend(index, it.attention, it.norms[0](x), mask)
            x = x + it.beta * it.down(functional.gelu(it.up(it.norms[1](x))))
        return model.norm(x)


def decoder(model: Gated, target: Path, *, behind: int = 0) -> Path:
    """Write MODEL at TARGET by Apple's recipe; return TARGET."""
    module = Decoder(model, behind=behind).eval()
    example = (torch.ones(1, 2, dtype=torch.int64), torch.zeros(1, 1, 2, 5))
    new, total = (coremltools.RangeDim(1, LIMIT, default=1) for _ in range(2))

    def described(shape: Any, dtype: Any = np.float16, **name: str) -> Any:
        return coremltools.TensorType(shape=shape, dtype=dtype, **name)

    with torch.no_grad(), quiet(), with_older_numpy():
        made = coremltools.convert(
            torch.jit.trace(module, example, check_trace=False),
            inputs=[
                described((1, new), np.int32, name="inputIds"),
                described((1, 1, new, total), name="causalMask"),
            ],
            outputs=[coremltools.TensorType(name="logits", dtype=np.float16)],
            states=[
                coremltools.StateType(described(getattr(module, name).shape), name=name)
                for name in NAMES
            ],
            minimum_deployment_target=coremltools.target.iOS18,
            skip_model_load=True,
        )
    made.save(str(target))
    return target
