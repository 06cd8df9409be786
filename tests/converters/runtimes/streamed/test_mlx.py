"""A class of an MLX library computes the same with its weights on disk as with them in memory."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx.utils import tree_flatten

from weighbridge.converters.checkpoints import open_checkpoint
from weighbridge.converters.checkpoints.formats.safetensors import save_tensors
from weighbridge.converters.common.arrays import from_mlx, to_mlx
from weighbridge.converters.common.dtypes import dtype_of
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


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("bias", [False, True])
def test_sums_of_16_bits_are_rounded_once_as_in_mlx(tmp_path, dtype, bias):
    drawn, kind = np.random.default_rng(1), dtype_of(dtype)
    weight, x = (drawn.normal(size=(64, 256)).astype(kind) for _ in range(2))
    own = nn.Linear(256, 64, bias=bias)
    own.set_dtype(getattr(mx, dtype))
    own.weight = to_mlx(weight)
    save_tensors(tmp_path / "w.safetensors", {"w": weight})
    stored = streamed.Stored(open_checkpoint(tmp_path / "w.safetensors"), "w", None)
    found = streamed.product(to_mlx(x), stored, own.bias if bias else None)
    exact = np.array(x.astype(np.float64) @ weight.astype(np.float64).T)
    exact += from_mlx(own.bias).astype(np.float64) if bias else 0
    errors = [np.abs(from_mlx(it).astype(np.float64) - exact) for it in (found, own(to_mlx(x)))]
    assert from_mlx(found).dtype == kind
    assert errors[0].max() <= errors[1].max()


def test_no_weight_stays_in_memory(tiny_mlx):
    runner = MlxRunner(open_model(tiny_mlx("llama")), Policy())
    runner.run(INPUTS)
    assert {array.size for _, array in tree_flatten(runner.module.parameters())} == {1}
    assert runner.module.model.norm.weight.dtype == mx.float32
