"""Tiny models of many families, into which faults are planted: realistic gain, any seed, any dtype."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file

from weighbridge.tests.support.atlas.tiny import GAIN, STEPS, make

FIXTURES: Final = Path(__file__).parents[3] / "fixtures"
FAMILIES: Final[Mapping[str, tuple[str, ...]]] = {
    "encoder": ("bert", "modernbert"),
    "decoder": ("llama", "gemma3_text", "gpt2"),
    "mixture of experts": ("qwen3_moe", "mixtral"),
    "state space": ("mamba", "qwen3_next"),
    "vision": ("vit", "clip"),
    "audio": ("wav2vec2", "whisper"),
    "convolutional": ("resnet", "convnext"),
    "T5": ("t5",),
}
OWN: Final[Mapping[str, Mapping[str, Any]]] = {
    "mixtral": {"sliding_window": None, "intermediate_size": 48},  # square experts, no window
    "gemma3_text": {"hidden_size": 64},  # mlx-lm rounds its root to bfloat16
}
ATLAS: Final = ("llama", *OWN, *FAMILIES["mixture of experts"], *FAMILIES["state space"])


def source(kind: str, folder: Path, *, seed: int = 0, dtype: str = "float32") -> Path:
    """Write the model KIND to FOLDER, its numbers in an order that SEED draws, kept in DTYPE.

    Args:
        kind: one of ``FAMILIES``, another fixture, or a type of the atlas.
        folder: does not exist yet.
        seed: of the order of each tensor's own numbers, which keeps their scale.
        dtype: of every floating-point tensor, as torch calls it.
    """
    if kind in ATLAS or not (FIXTURES / kind).is_dir():
        make(kind, folder, own=OWN.get(kind), gain=GAIN)
    else:
        shutil.copytree(FIXTURES / kind / "model", folder)
    file, order = folder / "model.safetensors", torch.Generator().manual_seed(seed)
    tensors = {
        name: drawn(name, tensor, order).to(getattr(torch, dtype)).contiguous()
        if tensor.is_floating_point()
        else tensor
        for name, tensor in sorted(load_file(file).items())
    }
    save_file(tensors, file, metadata={"format": "pt"})
    return folder


def drawn(name: str, tensor: torch.Tensor, order: torch.Generator) -> torch.Tensor:
    """Return the numbers of TENSOR in another order, a matrix at realistic gain."""
    mixed = tensor.flatten()[torch.randperm(tensor.numel(), generator=order)].reshape(tensor.shape)
    if tensor.ndim < 2 or name.endswith(STEPS) or not tensor.std() > 0:
        return mixed
    inputs = tensor.shape[-1] if tensor.ndim == 3 else tensor[0].numel()
    return mixed * (GAIN / inputs**0.5 / tensor.std())
