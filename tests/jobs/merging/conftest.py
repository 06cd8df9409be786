"""A quantized Llama and its adapters, and experts; tests copy them before they change them."""

from __future__ import annotations

import mlx.core as mx
import pytest
from mlx_lm.models import qwen3_moe

from weighbridge.tests.support.quantized_bases import (
    MOE,
    STEP,
    TINY,
    edited,
    quantized,
    trained,
)


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    return quantized(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def small(base):
    """An adapter that 4 bits erase and 8 bits keep."""
    return trained(base.parent / "small", base, TINY)


@pytest.fixture(scope="session")
def large(base):
    """An adapter that 4 bits keep."""
    return trained(base.parent / "large", base, 3 * STEP)


@pytest.fixture(scope="session")
def experts(tmp_path_factory):
    """A base of 4 bits with experts, and an adapter of which the first expert survives alone."""
    folder = tmp_path_factory.mktemp("experts")
    base = quantized(folder, MOE, qwen3_moe)
    whole = trained(folder / "whole", base, 3 * STEP, keys=("mlp.switch_mlp.up_proj",))
    faint = mx.array([1.0, 0.03, 0.03, 0.03]).reshape(4, 1, 1)
    adapter = edited(
        whole,
        folder / "adapter",
        lambda it: {n: a * faint if n.endswith("lora_b") else a for n, a in it.items()},
    )
    return base, adapter
