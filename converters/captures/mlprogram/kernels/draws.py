"""Kernels that draw numbers: from the distributions that MIL documents, not the numbers that Core ML draws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Generator, Tensor

from .kernel import Function, Ints


def generator(seed: int) -> Generator:
    """Return what draws: the same numbers again for a SEED, others in every run where it is negative."""
    made = Generator()
    if seed < 0:
        made.seed()
    else:
        made.manual_seed(seed)
    return made


def random_bernoulli(shape: Ints, prob: float = 0.5, seed: int = -1) -> Tensor:
    """Draw ones with the probability PROB, and zeros."""
    return (torch.rand(shape, generator=generator(seed)) < prob).float()


def random_categorical(x: Tensor, mode: str = "logits", size: int = 1, seed: int = -1) -> Tensor:
    """Draw SIZE places along the last axis of X, each again and again, by logits or ``probs``."""
    weights = x.softmax(-1) if mode == "logits" else x
    rows = weights.reshape(-1, x.shape[-1])
    drawn = torch.multinomial(rows, size, replacement=True, generator=generator(seed))
    return drawn.reshape(*x.shape[:-1], size).float()


def random_normal(shape: Ints, mean: float = 0.0, stddev: float = 1.0, seed: int = -1) -> Tensor:
    """Draw normal numbers."""
    return torch.randn(shape, generator=generator(seed)) * stddev + mean


def random_uniform(shape: Ints, low: float = 0.0, high: float = 1.0, seed: int = -1) -> Tensor:
    """Draw numbers from LOW up to HIGH, which is not among them."""
    return torch.rand(shape, generator=generator(seed)) * (high - low) + low


KERNELS: Final[Mapping[str, Function]] = {
    function.__name__: function
    for function in (random_bernoulli, random_categorical, random_normal, random_uniform)
}
