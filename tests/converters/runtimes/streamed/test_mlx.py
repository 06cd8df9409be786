"""A class of an MLX library computes the same with its weights on disk as with them in memory."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from weighbridge.converters.common.policy import Policy
from weighbridge.converters.planning.opening import open as open_model
from weighbridge.converters.runtimes import mlx as runtime
from weighbridge.converters.runtimes.mlx import MlxRunner
from weighbridge.converters.runtimes.streamed import mlx as streamed

INPUTS = {"input_ids": np.random.default_rng(0).integers(3, 130, (2, 12))}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["llama", "mixtral", "qwen3", "mamba"])
def test_outputs_are_the_same(tiny_mlx, monkeypatch, kind, dtype):
    model, policy = open_model(tiny_mlx(kind)), Policy(compute=dtype)
    on_disk = MlxRunner(model, policy)
    assert on_disk.describe()["weights"] == "on disk"
    monkeypatch.setattr(runtime, "library_on_disk", lambda *_: None)
    whole = MlxRunner(model, policy).run(INPUTS)["logits"].astype(np.float32)
    found = on_disk.run(INPUTS)["logits"].astype(np.float32)
    assert np.linalg.norm(found - whole) <= 1e-6 * np.linalg.norm(whole)


def test_large_layers_are_run_some_rows_at_a_time(tiny_mlx, monkeypatch):
    model = open_model(tiny_mlx("llama"))
    whole = MlxRunner(model, Policy()).run(INPUTS)["logits"]
    monkeypatch.setattr(streamed, "BLOCK", 2000)
    rows = MlxRunner(model, Policy()).run(INPUTS)["logits"]
    assert np.linalg.norm(rows - whole) <= 1e-6 * np.linalg.norm(whole)


def test_no_weight_stays_in_memory(tiny_mlx):
    runner = MlxRunner(open_model(tiny_mlx("llama")), Policy())
    runner.run(INPUTS)
    assert {array.size for _, array in tree_flatten(runner.module.parameters())} == {1}
    assert runner.module.model.norm.weight.dtype == mx.float32
