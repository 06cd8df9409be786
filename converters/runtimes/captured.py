"""A model opened as a capture of its torch class, its quantized weights as the codes that they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.arrays import to_torch
from ..common.steps import step
from ..maps.sources.torch_blocks import torch_blocks
from ..models import Model
from ..quantization import Blocks
from .mlx import captured_module

if TYPE_CHECKING:
    import torch

    from ..captures.torch_to_mlx.captured import Captured


def captured_quantized(model: Model, dtype: str = "float32") -> Captured:
    """Capture MODEL's torch class; weights that it holds as codes are held as the same codes.

    A weight that the class holds in another layout than the codes can follow is dense, at its
    canonical values; progress names it.

    Args:
        model: seen dense, its codes at hand (``planning.transcoding.quantized_view``).
        dtype: of everything that is dense, and of what is computed.
    """
    captured, found = captured_module(model, dtype, frozen=False), torch_blocks(model)
    if found.blocks:
        state = captured.torch_state_dict()
        same = {n: it for n, it in found.blocks.items() if n not in state or equal(state[n], it)}
        changed = dict.fromkeys(found.blocks.keys() - same.keys(), "loading changes its values")
        left = {**found.dense, **changed, **captured.set_blocks(same, strict=False)}
        for name, why in sorted(left.items()):
            step(f"{name} is dense: {why}")
    return captured


def equal(tensor: torch.Tensor, block: Blocks) -> bool:
    """Tell whether TENSOR, a parameter as it was loaded, has the values that BLOCK stands for."""
    values = to_torch(block.dense()).to(tensor.dtype)
    return values.shape == tensor.shape and bool((values == tensor).all())
