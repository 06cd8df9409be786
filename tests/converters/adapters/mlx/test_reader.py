"""What is written in mlx-lm's dialect means to MLX what it means here."""

from __future__ import annotations

import json

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.converters.adapters import merge, read_adapter, write_adapter
from weighbridge.converters.values import LowRank
from weighbridge.errors import UnsupportedError

DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def lowrank(seed, rank=3, scale=2.0, dtype=np.float32, magnitude=False):
    generator = np.random.default_rng(seed)
    return LowRank(
        generator.normal(size=(rank, 5)).astype(dtype),
        generator.normal(size=(7, rank)).astype(dtype),
        scale,
        generator.uniform(1, 2, 7).astype(np.float32) if magnitude else None,
    )


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("magnitude", [False, True], ids=["lora", "dora"])
def test_what_is_written_is_read_bit_for_bit(dtype, magnitude, tmp_path):
    updates = {f"layers.{n}.q.weight": lowrank(n, 3, 2.0, dtype, magnitude) for n in range(3)}
    write_adapter(tmp_path, updates, config={})
    found = read_adapter(tmp_path)
    assert found.dialect == "mlx"
    assert list(found.updates) == list(updates)
    for name, update in updates.items():
        got = found.updates[name]
        assert (got.a.dtype, got.scale, got.shape) == (dtype, 2.0, (7, 5))
        assert (got.a == update.a).all()
        assert (got.b == update.b).all()
        assert (got.magnitude is None) == (not magnitude)
        assert not magnitude or (got.magnitude == update.magnitude).all()


def test_merged_and_live_agree_as_mlx_computes_them(tmp_path):
    update = lowrank(1)
    write_adapter(tmp_path, {"q.weight": update}, config={})
    tensors = mx.load(str(tmp_path / "adapters.safetensors"))
    scale = json.loads((tmp_path / "adapter_config.json").read_text())["lora_parameters"]["scale"]
    generator = np.random.default_rng(2)
    base = generator.normal(size=(7, 5)).astype(np.float32)
    x = mx.array(generator.normal(size=(4, 5)).astype(np.float32))
    live = x @ mx.array(base).T + scale * (x @ tensors["q.lora_a"]) @ tensors["q.lora_b"]
    merged, _ = merge(base, read_adapter(tmp_path).updates["q.weight"])
    error = np.abs(np.array(x @ mx.array(merged).T) - np.array(live)).max()
    effect = np.abs(np.array(x @ mx.array(base).T) - np.array(live)).max()
    assert error < 1e-5 < effect


def test_dora_merged_and_live_agree_as_mlx_computes_them(tmp_path):
    write_adapter(tmp_path, {"q.weight": lowrank(1, magnitude=True)}, config={})
    t = mx.load(str(tmp_path / "adapters.safetensors"))
    generator = np.random.default_rng(2)
    base = mx.array(generator.normal(size=(7, 5)).astype(np.float32))
    x = mx.array(generator.normal(size=(4, 5)).astype(np.float32))
    # mlx_lm.tuner.dora.DoRALinear.__call__, scale 2
    out = x @ base.T + 2.0 * ((x @ t["q.lora_a"]) @ t["q.lora_b"])
    adapted = base + (2.0 * t["q.lora_b"].T) @ t["q.lora_a"].T
    live = (t["q.m"] / mx.linalg.norm(adapted, axis=1)) * out
    merged, _ = merge(np.array(base), read_adapter(tmp_path).updates["q.weight"])
    assert np.abs(np.array(x @ mx.array(merged).T) - np.array(live)).max() < 1e-5


@given(st.lists(st.tuples(st.integers(1, 4), st.floats(0.1, 8)), min_size=1, max_size=4))
def test_ranks_and_scales_that_differ_keep_their_effect(tmp_path_factory, terms):
    folder = tmp_path_factory.mktemp("a")
    updates = {f"{n}.weight": lowrank(n, rank, scale) for n, (rank, scale) in enumerate(terms)}
    write_adapter(folder, updates, config={})
    found = read_adapter(folder).updates
    assert {update.rank for update in found.values()} == {max(rank for rank, _ in terms)}
    scales = [scale for _, scale in terms]
    assert {update.scale for update in found.values()} == {max(scales, key=scales.count)}
    for name, update in updates.items():
        np.testing.assert_allclose(found[name].delta(), update.delta(), rtol=1e-5, atol=1e-5)


def test_smaller_ranks_are_padded_exactly(tmp_path):
    updates = {"a.weight": lowrank(0, 4), "b.weight": lowrank(1, 2)}
    write_adapter(tmp_path, updates, config={})
    found = read_adapter(tmp_path).updates["b.weight"]
    assert (found.a[:2] == updates["b.weight"].a).all()
    assert (found.b[:, :2] == updates["b.weight"].b).all()
    assert not found.a[2:].any()
    assert not found.b[:, 2:].any()


def test_the_config_has_what_mlx_lm_reads_and_what_was_recorded(tmp_path):
    recorded = {"model": "base", "num_layers": 4, "lora_parameters": {"dropout": 0.1, "rank": 99}}
    write_adapter(tmp_path, {"layers.0.q.weight": lowrank(0)}, config=recorded)
    assert json.loads((tmp_path / "adapter_config.json").read_text()) == {
        "model": "base",
        "fine_tune_type": "lora",
        "num_layers": 4,
        "lora_parameters": {"rank": 3, "scale": 2.0, "dropout": 0.1, "keys": ["layers.0.q"]},
    }


def test_writing_again_replaces_the_adapter_and_nothing_else(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for seed in (0, 1):
        write_adapter(tmp_path, {"q.weight": lowrank(seed)}, config={})
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "adapter_config.json",
        "adapters.safetensors",
        "notes.txt",
    ]
    found = safetensors.numpy.load_file(tmp_path / "adapters.safetensors")
    assert (found["q.lora_a"] == lowrank(1).a.T).all()


REFUSED = {
    "nothing": ({}, {}, "nothing to write"),
    "mixture": (
        {"a.weight": lowrank(0), "b.weight": lowrank(0, magnitude=True)},
        {},
        "1 of 2 updates are DoRA; all must be, or none",
    ),
    "no weight": ({"experts.gate_up_proj": lowrank(0)}, {}, "gate_up_proj is not a parameter call"),
    "no module": ({"gate.weight": lowrank(0)}, {"kinds": {}}, "gate.weight is not of a Linear"),
    "DoRA of an embedding": (
        {"e.weight": lowrank(0, magnitude=True)},
        {"kinds": {"e": "embedding"}},
        "e.weight is an embedding with DoRA norms",
    ),
    "modules_to_save": (
        {"a.weight": lowrank(0)},
        {"saved": {"head.weight": np.zeros(3, np.float32)}},
        r"modules_to_save tensors beside updates \(head.weight\); merge the adapter instead",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_mlx_lm_has_no_form_for_is_refused(case, tmp_path):
    updates, options, message = REFUSED[case]
    with pytest.raises(UnsupportedError, match=message):
        write_adapter(tmp_path / "out", updates, config={}, **options)
    assert not (tmp_path / "out").exists()
