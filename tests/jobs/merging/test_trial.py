"""Which weights an adapter affects, and what of its update a form keeps."""

from __future__ import annotations

import re
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from weighbridge import jobs
from weighbridge.converters.adapters.merging.affected import blocks
from weighbridge.converters.adapters.merging.statistics import SAMPLE, measure
from weighbridge.converters.checkpoints import open_checkpoint
from weighbridge.converters.models import open as open_model
from weighbridge.converters.planning.view import dense_view
from weighbridge.converters.quantization import Dequantized, Recipe, Scheme
from weighbridge.converters.quantization.forms import Form, common_dtype, wider
from weighbridge.converters.values import LowRank
from weighbridge.errors import MismatchError
from weighbridge.jobs.merging.trial import affected_weights, changes_of, try_forms
from weighbridge.tests.support.quantized_bases import (
    QUERY,
    edited,
    ignore,
    live,
    merged,
    settings,
)


def test_rows_that_an_update_leaves_alone_keep_their_bytes(base, large):
    model = live(base, large)
    name, update = next(iter(model.adapter.updates.items()))
    b = update.b.copy()
    b[::2] = 0
    half = replace(model.adapter, updates={name: replace(update, b=b)})
    [weight] = affected_weights(changes_of(replace(model, adapter=half)), model.tensors)
    made, parts = weight.made(weight.own, ignore), model.tensors.parts(name)
    for part, whole in parts.items():
        found = made[model.tensors.part_names(name)[part]]
        assert np.array_equal(found[::2], whole[::2])
        assert not np.array_equal(found[1::2], whole[1::2])


def test_a_large_expert_hides_no_small_one(experts, tmp_path):
    base, adapter = experts
    with pytest.raises(MismatchError, match="in 2 of 2 layers") as refused:
        merged(base, adapter, tmp_path / "merged")
    assert all(re.search(r"up_proj\.weight\[[123]\]: ", it) for it in refused.value.problems)
    found = merged(base, adapter, tmp_path / "merged", jobs.Options(), promote=True)
    assert found.status == "PASS"
    assert {tuple(it["part"]) for it in found.facts["merged"].values()} <= {(1,), (2,), (3,)}


def test_every_expert_is_in_the_sample(experts, monkeypatch):
    model = live(*experts)
    monkeypatch.setattr("weighbridge.converters.adapters.merging.affected.BLOCK", 64)
    monkeypatch.setattr("weighbridge.converters.adapters.merging.statistics.SAMPLE", 1)
    found = measure(
        affected_weights(changes_of(model), model.tensors)[0], Form(Scheme(4, 64), "F16")
    )
    assert found.seen == 4 * 64
    assert found.part in {(1,), (2,), (3,)}


def test_an_expert_without_an_update_is_not_called_lost(experts, tmp_path):
    base, adapter = experts
    one = edited(
        adapter,
        tmp_path / "one",
        lambda it: {
            n: a * (mx.arange(4) == 0).reshape(4, 1, 1) if n.endswith("lora_b") else a
            for n, a in it.items()
        },
    )
    found = merged(base, one, tmp_path / "merged", jobs.Options())
    assert found.status == "PASS"
    name = "model.layers.0.mlp.switch_mlp.up_proj.scales"
    after, before = (open_checkpoint(it).read(name) for it in (found.target, base))
    assert np.array_equal(after[1:], before[1:])
    assert not np.array_equal(after[0], before[0])
    again = merged(
        base,
        one,
        tmp_path / "from_original",
        jobs.Options(),
        original=open_model(base.parent / "original"),
    )
    assert again.verdict.stage("fingerprints").status == "pass"
    assert again.status == "UNVERIFIED"  # the rounding of all other weights hides one expert


def test_a_whole_tensor_takes_the_place_of_the_bases(base, large):
    model = live(base, large)
    name = f"model.layers.0.{QUERY}.weight"
    fresh = np.random.default_rng(3).normal(size=(64, 64)).astype(np.float32)
    norm = np.linspace(0.5, 2, 64, dtype=np.float16)
    saved = {name: fresh, "model.norm.weight": norm}
    model = replace(model, adapter=replace(model.adapter, updates={}, saved=saved))
    one, other = affected_weights(changes_of(model), model.tensors)
    assert other.made(other.own, ignore)["model.norm.weight"].tobytes() == norm.tobytes()
    form = Form(Scheme(8, 64), "F32")
    assert measure(one, form).survival.relative_error < 0.02


def test_numbers_too_large_for_float16_are_kept_in_another_dtype(base, large):
    model = live(base, large)
    name, update = next(iter(model.adapter.updates.items()))
    wild = LowRank(np.full((1, update.shape[1]), 3e3), np.full((update.shape[0], 1), 40.0), 1.0)
    adapter = replace(model.adapter, updates={name: wild})
    model = replace(model, adapter=adapter)
    found = try_forms(affected_weights(changes_of(model), model.tensors))[name]
    assert [it.fits for it in found.tried] == [False, False, False, True]
    assert str(found.best.form) == "BF16"


def test_an_adapter_of_another_base_is_refused_with_the_whole_list(base, large):
    model = live(base, large)
    update = next(iter(model.adapter.updates.values()))
    strange = {"a.weight": update, "model.norm.weight": update}
    model = replace(model, adapter=replace(model.adapter, updates=strange))
    with pytest.raises(MismatchError, match="0 of 2") as refused:
        affected_weights(changes_of(model), model.tensors)
    assert len(refused.value.problems) == 2


def test_wider_forms_come_by_size_and_none_is_tried_that_holds_less(base):
    tensors = dense_view(open_model(base)).tensors
    assert isinstance(tensors, Dequantized)
    assert common_dtype(tensors) == "F16"
    of = [str(form) for form in wider(Form(Scheme(4, 64), "BF16"), (3, 64), "BF16")]
    assert of == [
        "8-bit affine, groups of 64, BF16 scales",
        "8-bit affine, groups of 64, F16 scales",
        "BF16",
        "F16",
        "F32",
    ]
    assert [str(it) for it in wider(Form(Scheme(8, 32), "F16"), (3, 64), "F16")] == [
        "F16",
        "BF16",
        "F32",
    ]
    assert [str(it) for it in wider(Form(None, "F16"), (3, 64), "F16")] == ["BF16", "F32"]
    assert Recipe.parse(settings(base)) is not None


def test_some_rows_tell_what_all_of_them_do(base, large, monkeypatch):
    model = live(base, large)
    weight = affected_weights(changes_of(model), model.tensors)[0]
    monkeypatch.setattr("weighbridge.converters.adapters.merging.affected.BLOCK", 64)
    count = len(list(blocks(weight.shape)))
    assert count >= 2 * SAMPLE
    some = measure(weight, weight.own)
    monkeypatch.setattr("weighbridge.converters.adapters.merging.statistics.SAMPLE", count)
    whole = measure(weight, weight.own)
    assert some.survival.size <= whole.survival.size / 2
    assert some.survival.gain == pytest.approx(whole.survival.gain, abs=0.05)


def test_a_change_that_no_sample_meets_is_found(base, large, monkeypatch):
    model = live(base, large)
    name, update = next(iter(model.adapter.updates.items()))
    b = np.zeros_like(update.b)
    b[1] = update.b[1]
    adapter = replace(model.adapter, updates={name: replace(update, b=b)})
    [weight] = affected_weights(changes_of(replace(model, adapter=adapter)), model.tensors)
    monkeypatch.setattr("weighbridge.converters.adapters.merging.affected.BLOCK", 64)
    found = measure(weight, weight.own)
    assert found.changed
    assert found.survival.size == np.prod(weight.shape)
