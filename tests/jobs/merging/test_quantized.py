"""Merges into quantized bases, held against mlx-lm's own live layers and its quantization."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
from mlx_lm.models import qwen3_moe
from mlx_lm.utils import load_model

from weighbridge.converters.checkpoints import open_checkpoint
from weighbridge.jobs.merging.check import BAR
from weighbridge.tests.support.quantized_bases import (
    DOWN,
    MOE,
    TINY,
    merged,
    off,
    quantized,
    settings,
    stored,
    trained,
)


def test_an_adapter_that_4_bits_keep_is_merged_at_4_bits(base, large, tmp_path):
    found = merged(base, large, tmp_path / "merged")
    assert (found.target / "config.json").read_bytes() == (base / "config.json").read_bytes()
    assert {it["verdict"] for it in found.facts["merged"].values()} == {"pass"}
    assert off(found.target, base, large) < BAR
    assert stored(found.target).keys() == stored(base).keys()


def test_what_is_merged_at_4_bits_is_mx_quantize_of_the_sum(base, large, tmp_path):
    target = merged(base, large, tmp_path / "merged").target
    name = f"model.layers.1.{DOWN}"
    model, halves = load_model(base)[0], mx.load(str(large / "adapters.safetensors"))
    layer = model.model.layers[1].mlp.down_proj
    wide = (array.astype(mx.float32) for array in (layer.scales, layer.biases))
    before = mx.dequantize(layer.weight, *wide, group_size=64, bits=4)
    delta = 2.0 * (halves[f"{name}.lora_a"] @ halves[f"{name}.lora_b"]).T
    codes, scales, _ = mx.quantize(before + delta, group_size=64, bits=4)
    found = open_checkpoint(target)
    assert np.mean(found.read(f"{name}.weight") == np.array(codes)) > 0.99  # float64 against 32
    assert np.allclose(found.read(f"{name}.scales"), np.array(scales), rtol=1e-3)


def test_an_update_of_nothing_leaves_every_byte(base, tmp_path):
    nothing = trained(tmp_path / "nothing", base, 0.0)
    target = merged(base, nothing, tmp_path / "merged").target
    assert stored(target) == stored(base)
    assert (target / "config.json").read_bytes() == (base / "config.json").read_bytes()


def test_dora_is_merged_as_mlx_lm_computes_it(base, tmp_path):
    adapter = trained(tmp_path / "dora", base, TINY, kind="dora")
    target = merged(base, adapter, tmp_path / "merged", promote=True).target
    assert off(target, base, adapter) < BAR


def test_experts_are_merged_one_by_one(tmp_path):
    base = quantized(tmp_path, MOE, qwen3_moe, mx.float32)
    keys = ("mlp.switch_mlp.gate_proj", "mlp.switch_mlp.down_proj")
    adapter = trained(tmp_path / "adapter", base, TINY, keys=keys)
    found = merged(base, adapter, tmp_path / "merged", promote=True)
    assert len(found.facts["merged"]) == 4
    assert off(found.target, base, adapter) < BAR


def test_a_quantized_embedding_and_head_are_merged(base, tmp_path):
    keys = ("model.embed_tokens", "lm_head")
    adapter = trained(tmp_path / "adapter", base, TINY, keys=keys)
    target = merged(base, adapter, tmp_path / "merged", promote=True).target
    assert off(target, base, adapter) < BAR


def test_forced_it_is_written_and_the_manifest_says_what_was_lost(base, small, tmp_path):
    found = merged(base, small, tmp_path / "merged", force=True)
    assert {it["verdict"] for it in found.facts["merged"].values()} == {"refuse"}
    assert off(found.target, base, small) > BAR
    assert settings(found.target) == settings(base)
