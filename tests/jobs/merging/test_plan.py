"""Which form every affected weight is given, and what the configuration says of it."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models import qwen3_moe
from mlx_lm.utils import load_model

from weighbridge.converters.models import open as open_model
from weighbridge.converters.planning.view import dense_view
from weighbridge.errors import BadInputError
from weighbridge.jobs.merging.check import BAR
from weighbridge.tests.support.quantized_bases import (
    DOWN,
    IDS,
    LLAMA,
    MOE,
    QUERY,
    STEP,
    TINY,
    changed,
    live,
    merged,
    off,
    quantized,
    settings,
    stored,
    trained,
)


def test_promoted_layers_follow_the_live_adapter_in_mlx_lms_own_class(base, small, tmp_path):
    found = merged(base, small, tmp_path / "merged", promote=True)
    assert off(found.target, base, small) < BAR
    modules = {f"model.layers.{n}.{key}" for n in (0, 1) for key in (QUERY, DOWN)}
    section = settings(found.target)["quantization"]
    assert section == settings(found.target)["quantization_config"]
    assert {path for path, it in section.items() if isinstance(it, dict)} == modules
    assert section[f"model.layers.0.{QUERY}"] == {"group_size": 64, "bits": 8, "mode": "affine"}
    expected = {f"{m}.{part}" for m in modules for part in ("weight", "scales", "biases")}
    assert changed(found.target, base) == expected  # q_proj.bias stays
    rest = {"quantization", "quantization_config"}
    kept = {key: value for key, value in settings(base).items() if key not in rest}
    assert kept.items() <= settings(found.target).items()


def test_promote_and_original_exclude_each_other(base, small, tmp_path):
    original = open_model(base.parent / "original")
    with pytest.raises(BadInputError, match="exclude each other"):
        merged(base, small, tmp_path / "merged", promote=True, original=original)
    assert list(tmp_path.iterdir()) == []


def test_a_mixed_recipe_keeps_what_it_names(tmp_path):
    def recipe(path, module):
        return {"group_size": 32, "bits": 6} if "v_proj" in path else "lm_head" not in path

    base = quantized(tmp_path, bits=4, quant_predicate=recipe)
    adapter = trained(tmp_path / "adapter", base, TINY, keys=("self_attn.v_proj", "lm_head"))
    found = merged(base, adapter, tmp_path / "merged", promote=True)
    forms = {name: it["form"] for name, it in found.facts["merged"].items()}
    assert forms["lm_head.weight"] == "F16"
    assert off(found.target, base, adapter) < BAR
    before, after = (settings(folder)["quantization"] for folder in (base, found.target))
    named = {path for path in before if path.endswith("v_proj")}
    assert named
    assert {path for path in before if before[path] != after[path]} <= named


def test_a_layer_that_no_group_of_8_bits_divides_becomes_dense(tmp_path):
    config = LLAMA | {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 2}
    base = quantized(tmp_path, config, group_size=32)
    adapter = trained(tmp_path / "adapter", base, TINY)
    target = merged(base, adapter, tmp_path / "merged", promote=True).target
    section = settings(target)["quantization"]
    assert section[f"model.layers.0.{QUERY}"] is False
    assert section[f"model.layers.0.{DOWN}"]["bits"] == 8  # 192 columns
    assert stored(target)[f"model.layers.0.{QUERY}.weight"][0].dtype == "F16"
    assert off(target, base, adapter) < BAR


def test_experts_with_a_scale_of_their_own_keep_it_or_become_affine(tmp_path):
    how = {"group_size": None, "bits": None, "mode": "nvfp4", "global_scale": True}
    base = quantized(tmp_path, MOE, qwen3_moe, mx.float32, **how)
    adapter = trained(tmp_path / "adapter", base, 3 * STEP, keys=("mlp.switch_mlp.down_proj",))
    found = merged(base, adapter, tmp_path / "merged", force=True)
    faint = trained(tmp_path / "faint", base, TINY, keys=("mlp.switch_mlp.down_proj",))
    again = merged(base, faint, tmp_path / "promoted", promote=True)
    name = "model.layers.0.mlp.switch_mlp.down_proj.weight"
    for target, trained_there, bar in ((found.target, adapter, 0.15), (again.target, faint, 0.01)):
        load_model(target)  # which runs these on GPUs alone
        real = dense_view(open_model(target)).checkpoint.read(name)
        before = live(base, trained_there)
        wanted = before.adapter.updates[name].applied_to(before.checkpoint.read(name))
        assert np.linalg.norm(real - wanted) < bar * np.linalg.norm(wanted)
    scale = name.replace("weight", "global_scale")
    assert stored(found.target)[scale][0] == stored(base)[scale][0]
    assert scale not in stored(again.target)


@pytest.mark.parametrize("mode", ["mxfp4", "nvfp4", "mxfp8"])
def test_floating_point_codes_are_promoted_as_well(tmp_path, mode):
    base = quantized(tmp_path, group_size=None, bits=None, mode=mode)
    adapter = trained(tmp_path / "adapter", base, TINY)
    target = merged(base, adapter, tmp_path / "merged", promote=True).target
    assert off(target, base, adapter) < BAR


def test_a_bfloat16_base_stays_in_bfloat16_where_that_is_enough(tmp_path):
    base = quantized(tmp_path, dtype=mx.bfloat16)
    adapter = trained(tmp_path / "adapter", base, TINY)
    found = merged(base, adapter, tmp_path / "merged", promote=True)
    assert {it["form"] for it in found.facts["merged"].values()} == {
        "8-bit affine, groups of 64, BF16 scales"
    }
    model, _ = load_model(found.target)
    assert model(IDS).dtype == mx.bfloat16
    assert not [note for note in found.facts["notes"] if "float32" in note]
