"""Adapters for a small base, as tests need them."""

from __future__ import annotations

import numpy as np
import pytest

from weighbridge.converters.checkpoints import Header
from weighbridge.converters.values import LowRank

LAYERS, OUT, IN, RANK = 6, 20, 12, 4
KINDS = ("attention.self.query", "attention.self.value")
NAMES = [f"encoder.layer.{n}.{kind}.weight" for n in range(LAYERS) for kind in KINDS]


@pytest.fixture
def updates() -> dict[str, LowRank]:
    """Return twelve updates, query and value of six layers."""
    generator = np.random.default_rng(0)
    return {
        name: LowRank(
            generator.normal(size=(RANK, IN)).astype(np.float32),
            generator.normal(size=(OUT, RANK)).astype(np.float32),
            scale=2.0,
        )
        for name in NAMES
    }


@pytest.fixture
def headers() -> dict[str, Header]:
    """Return the tensors of the base that the updates are for."""
    other = {
        f"encoder.layer.{n}.attention.output.dense.weight": Header("F32", (IN, OUT))
        for n in range(LAYERS)
    }
    return (
        {name: Header("F32", (OUT, IN)) for name in NAMES}
        | other
        | {
            "embeddings.word.weight": Header("F32", (30, IN)),
            "pooler.dense.weight": Header("F32", (IN, IN)),
            "norm.weight": Header("F32", (IN,)),
        }
    )
