"""Merges into the original, quantized again as the base was."""

from __future__ import annotations

import shutil

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models import llama
from mlx_lm.utils import load_model, quantize_model

from weighbridge import jobs
from weighbridge.converters.checkpoints import open_checkpoint
from weighbridge.converters.models import open as open_model
from weighbridge.converters.planning.view import dense_view
from weighbridge.errors import BadInputError, MismatchError
from weighbridge.tests.support.atlas import tiny
from weighbridge.tests.support.quantized_bases import (
    LLAMA,
    QUERY,
    QUIET,
    STEP,
    TINY,
    changed,
    edited,
    merged,
    quantized,
    save,
    settings,
    stored,
    trained,
    without,
)


def test_into_the_original_an_update_of_nothing_is_kept_too(tmp_path):
    base = quantized(tmp_path, bits=8)
    adapter = trained(tmp_path / "adapter", base, STEP)
    half = edited(adapter, tmp_path / "half", lambda it: without(it, 0))
    original = open_model(tmp_path / "original")
    found = merged(base, half, tmp_path / "merged", jobs.Options(), original=original)
    assert found.status == "PASS"
    assert not [name for name in changed(found.target, base) if ".0." in name]

    def scaled(it):
        return {n: a * 1.002 if n.endswith(".scales") else a for n, a in it.items()}

    other = edited(base, tmp_path / "other", scaled)
    again = merged(other, half, tmp_path / "again", jobs.Options(), original=original)
    open_questions = [it.name for it in again.verdict.stages if it.status == "unverified"]
    assert (again.status, open_questions) == ("UNVERIFIED", ["base"])  # it may be a sibling
    assert stored(again.target) == stored(found.target)


def test_merged_into_the_original_it_is_quantized_as_the_base_is(base, small, tmp_path):
    original = open_model(base.parent / "original")
    found = merged(base, small, tmp_path / "merged", original=original, force=True)
    assert settings(found.target) == settings(base)
    names = {name.removesuffix("weight") for name in found.facts["merged"]}
    assert {name.rpartition(".")[0] + "." for name in changed(found.target, base)} == names
    model, _ = load_model(base.parent / "original")
    halves = mx.load(str(small / "adapters.safetensors"))
    name = f"model.layers.0.{QUERY}"
    delta = 2.0 * (halves[f"{name}.lora_a"] @ halves[f"{name}.lora_b"]).T
    wide = model.model.layers[0].self_attn.q_proj.weight.astype(mx.float32) + delta
    codes, *_ = mx.quantize(wide, group_size=64, bits=4)
    assert np.mean(open_checkpoint(found.target).read(f"{name}.weight") == np.array(codes)) > 0.99
    for it in found.facts["merged"].values():
        assert it["error"] == pytest.approx(it["live"], rel=0.1)


def test_into_the_original_the_same_bar_holds_and_the_quantization_error_is_reported(
    base, small, tmp_path
):
    """Four bits round the update away there as well: that is refused, and never called a pass."""
    original = open_model(base.parent / "original")
    with pytest.raises(MismatchError, match="rounding the merged weights again moves them by"):
        merged(base, small, tmp_path / "merged", original=original)
    assert list(tmp_path.iterdir()) == []
    options = jobs.Options()
    found = merged(base, small, tmp_path / "merged", options, original=original, force=True)
    assert found.status == "UNVERIFIED"
    assert {it["verdict"] for it in found.facts["merged"].values()} == {"refuse"}
    figures = found.facts["figures"]
    assert figures["merge"] == pytest.approx(figures["change of base"], rel=0.1)


def test_into_an_original_of_8_bits_it_survives(tmp_path):
    base = quantized(tmp_path, bits=8)
    adapter = trained(tmp_path / "adapter", base, STEP)
    original = open_model(tmp_path / "original")
    found = merged(base, adapter, tmp_path / "merged", original=original)
    assert {it["verdict"] for it in found.facts["merged"].values()} == {"pass"}


def test_a_base_of_another_recipe_is_made_from_the_original_as_a_whole(base, small, tmp_path):
    """As DWQ leaves it: scales trained, codes kept."""
    other = tmp_path / "dwq"
    other.mkdir()
    tensors = {
        name: array * 1.03 if name.endswith(".scales") else array
        for name, array in mx.load(str(base / "model.safetensors")).items()
    }
    mx.save_safetensors(str(other / "model.safetensors"), tensors, {"format": "mlx"})
    shutil.copy(base / "config.json", other)
    original = open_model(base.parent / "original")
    found = merged(other, small, tmp_path / "merged", original=original, force=True)
    whole = merged(base, small, tmp_path / "whole", original=original, force=True)
    assert stored(found.target) == stored(whole.target)
    assert any("weights are made again" in note for note in found.facts["notes"])


@pytest.mark.heavy
def test_the_original_may_lie_in_torchs_layout(tmp_path):
    made = tiny.make("qwen3_moe", tmp_path / "torch")
    jobs.convert(str(made.folder), tmp_path / "mlx", "mlx", options=QUIET)
    model, config = load_model(tmp_path / "mlx")
    base = save(tmp_path / "base", *quantize_model(model, config, 32, 4))
    adapter = trained(tmp_path / "adapter", base, TINY, ("mlp.switch_mlp.up_proj",))
    found, other = (
        merged(base, adapter, tmp_path / name, original=open_model(tmp_path / name[2:]), force=True)
        for name in ("a-torch", "a-mlx")
    )
    assert stored(found.target) == stored(other.target)
    assert found.facts["merged"]


def test_an_original_of_another_seed_is_refused(base, small, tmp_path):
    mx.random.seed(9)
    unrelated = llama.Model(llama.ModelArgs.from_dict(LLAMA))
    unrelated.set_dtype(mx.float16)
    other = open_model(save(tmp_path / "other", unrelated, LLAMA))
    with pytest.raises(MismatchError, match="was not made from"):
        merged(base, small, tmp_path / "merged", original=other)
    with pytest.raises(BadInputError, match="quantized itself"):
        merged(base, small, tmp_path / "merged", original=dense_view(open_model(base)))
    assert not (tmp_path / "merged").exists()
