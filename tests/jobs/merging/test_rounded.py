"""Merges of adapters that were trained by rounded weights: codes move on the scales that there are."""

from __future__ import annotations

import json

import mlx.core as mx
import numpy as np
import pytest
from click.testing import CliRunner

import weighbridge
from tests.support.quantized_bases import (
    DOWN,
    QUERY,
    STEP,
    TINY,
    merged,
    quantized,
    stored,
    trained,
)
from weighbridge import jobs
from weighbridge.cli import main
from weighbridge.converters.adapters import read_adapter
from weighbridge.converters.models import open as open_model
from weighbridge.converters.planning.view import dense_view
from weighbridge.converters.quantization import Blocks
from weighbridge.converters.quantization.fingerprints import fingerprints, grid_fingerprints
from weighbridge.converters.quantization.kept import moved_codes
from weighbridge.errors import MismatchError
from weighbridge.jobs import Options

WEIGHTS = [f"model.layers.{layer}.{module}.weight" for layer in (0, 1) for module in (QUERY, DOWN)]
MODES = [
    *({"bits": bits, "group_size": 64, "mode": "affine"} for bits in (2, 3, 4, 5, 6, 8)),
    {"bits": 4, "group_size": 32, "mode": "mxfp4"},
    {"bits": 8, "group_size": 32, "mode": "mxfp8"},
    {"bits": 4, "group_size": 16, "mode": "nvfp4"},
]
ELSEWHERE = "another model than the one that was trained"
SIZE = 0.01  # half of a 4-bit step: next to nothing of it survives plain rounding


def tensors(folder):
    return dense_view(open_model(str(folder))).tensors


def recorded(adapter, base, names=WEIGHTS, **more):
    """Record in ADAPTER that it was trained by the scales that the weights NAMES of BASE have."""
    record = {"base": {"grids": grid_fingerprints(tensors(base), names), **more}}
    (adapter / "weighbridge.json").write_text(json.dumps(record))
    return adapter


@pytest.fixture
def aware(tmp_path):
    """Return a function that makes a base of some mode and an adapter that was trained by its scales."""

    def make(names=WEIGHTS, *, size=SIZE, kind="lora", record=None, **how):
        base = quantized(tmp_path, **how)
        adapter = trained(tmp_path / "adapter", base, size, kind=kind)
        return base, recorded(adapter, base, names, **(record or {}))

    return make


@pytest.mark.parametrize(
    ("mode", "kind"),
    [*((mode, "lora") for mode in MODES), (MODES[2], "dora"), (MODES[-1], "dora")],
    ids=lambda it: it if isinstance(it, str) else f"{it['bits']}-bit {it['mode']}",
)
def test_codes_alone_move_to_those_nearest_to_the_sum(aware, tmp_path, mode, kind):
    base, adapter = aware(kind=kind, **mode)
    outcome = merged(base, adapter, tmp_path / "merged")
    there, before = tensors(tmp_path / "merged"), tensors(base)
    updates = read_adapter(adapter).updates
    for name in WEIGHTS:
        block = Blocks(before.parts(name), before.schemes[name])
        wanted = updates[name].applied_to(block.values())
        expected = moved_codes(block, wanted).parts
        assert all(np.array_equal(there.parts(name)[part], it) for part, it in expected.items())
        figures = outcome.facts["merged"][name]
        assert (figures["gain"], figures["verdict"]) == (pytest.approx(1), "pass")
        assert figures["cosine"] == pytest.approx(1)
    changed = {name for name, it in stored(base).items() if stored(tmp_path / "merged")[name] != it}
    assert changed == set(WEIGHTS)


def test_the_verdict_is_of_what_was_trained(aware, tmp_path):
    base, adapter = aware()
    verdict = merged(base, adapter, tmp_path / "merged", Options()).verdict
    assert verdict.status == "PASS"
    figures = verdict.provenance["figures"]
    assert figures["merge"] < 1e-6
    assert figures["rounding"] > 0.01


def test_an_update_that_moves_no_code_is_not_said_to_survive(aware, tmp_path):
    base, adapter = aware(size=STEP / 1e4)
    said = CliRunner().invoke(main, ["merge", str(base), str(adapter), str(tmp_path / "merged")])
    assert said.exit_code == 0, said.output
    assert "4 of 4 adapter updates merged, 4 of them change nothing:" in said.output
    assert "survived" not in said.output
    assert "of 4 of 4 layers trained so no code has moved" in said.output
    assert any(
        "no code has moved" in it
        for it in json.loads((tmp_path / "merged" / "weighbridge.json").read_text())["notes"]
    )
    assert stored(tmp_path / "merged") == stored(base)


def test_scales_of_another_base_are_not_those_that_it_was_trained_by(aware, tmp_path):
    base, adapter = aware(size=TINY)
    other = quantized(tmp_path / "other", group_size=32)
    with pytest.raises(MismatchError, match="round the adapter away"):
        merged(other, adapter, tmp_path / "merged")
    outcome = merged(other, adapter, tmp_path / "merged", force=True)
    assert any("4 of 4 updates" in note and ELSEWHERE in note for note in outcome.facts["notes"])
    assert base.exists()


@pytest.mark.parametrize("target", ["quantized otherwise", "dense", "dense, to torch"])
def test_a_merge_that_does_not_round_as_training_did_does_not_pass(aware, tmp_path, target):
    _, adapter = aware(size=1.5 * STEP)
    if target == "quantized otherwise":
        base = quantized(tmp_path / "other", bits=8)
        outcome = jobs.merge(str(base), adapter, tmp_path / "merged")
    else:
        base, to = tmp_path / "original", tmp_path / "merged"
        outcome = (
            jobs.merge(str(base), adapter, to)
            if target == "dense"
            else jobs.convert(str(base), to, "torch", adapter=adapter)
        )
    assert outcome.verdict.status == "UNVERIFIED"
    stages = {it.name: it for it in outcome.verdict.stages}
    assert stages.pop("base").detail.endswith(ELSEWHERE)
    assert {it.status for it in stages.values()} <= {"pass", "skipped"}


def test_only_recorded_layers_are_rounded_so(aware, tmp_path):
    base, adapter = aware([WEIGHTS[0]], size=TINY)
    outcome = merged(base, adapter, tmp_path / "merged", force=True)
    verdicts = {name: it["verdict"] for name, it in outcome.facts["merged"].items()}
    assert verdicts.pop(WEIGHTS[0]) == "pass"
    assert set(verdicts.values()) == {"refuse"}


def test_of_layers_of_which_some_have_other_scales_both_are_said(aware, tmp_path):
    base, adapter = aware()
    record = json.loads((adapter / "weighbridge.json").read_text())
    record["base"]["grids"][WEIGHTS[0]] = "xxh3:0"
    (adapter / "weighbridge.json").write_text(json.dumps(record))
    outcome = merged(base, adapter, tmp_path / "merged", Options(), force=True)
    first, second = outcome.facts["notes"][-2:]
    assert first.startswith("3 layers were trained by sums rounded to the scales of this base")
    assert second.startswith("1 of 4 updates")
    assert outcome.verdict.status == "UNVERIFIED"


def test_an_original_that_it_was_trained_on_has_to_be_named(aware, tmp_path):
    base, adapter = aware(record={"original": str(tmp_path / "original")})
    with pytest.raises(MismatchError, match=r"--original .*original"):
        merged(base, adapter, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize("moved", [None, DOWN, "norm"])
def test_a_base_rounded_in_any_way_is_the_right_one_if_all_that_was_trained_with_is_recorded(
    tmp_path, moved
):
    """Its codes prove nothing of its original: a finer search than MLX's own chose them.

    Norms are those of the base, in training and in the result, whatever the original has.
    """
    quantized(tmp_path / "plain")
    original, base = tmp_path / "plain" / "original", tmp_path / "searched"
    weighbridge.quantize(str(original), str(base), check="none")
    adapter = trained(tmp_path / "adapter", base, SIZE)
    added_to = fingerprints(open_model(str(original)).checkpoint, WEIGHTS)
    recorded(adapter, base, original=str(original), original_tensors=added_to)
    if moved:  # less than a step: by the codes alone nobody could tell
        arrays = mx.load(str(original / "model.safetensors"))
        arrays |= {name: it * 1.001 for name, it in arrays.items() if moved in name}
        mx.save_safetensors(str(original / "model.safetensors"), arrays, {"format": "mlx"})
    options, to = Options(original=str(original)), tmp_path / "merged"
    verdict = jobs.merge(str(base), adapter, to, options=options).verdict
    assert verdict.status == ("UNVERIFIED" if moved == DOWN else "PASS")
    before, after = stored(base), stored(to)
    assert {name for name in before if before[name] != after[name]} == {*WEIGHTS}


def test_codes_written_otherwise_than_trained_are_found(aware, tmp_path, monkeypatch):
    from weighbridge.converters.adapters.merging.affected import AffectedWeight

    base, adapter = aware()
    plain = AffectedWeight.encoded

    def moved(self, form, every=1):
        for block in plain(self, form, every):
            block.parts["weight"][0, 0] ^= 1
            yield block

    monkeypatch.setattr(AffectedWeight, "encoded", moved)
    verdict = merged(base, adapter, tmp_path / "merged", Options()).verdict
    assert verdict.status == "DIFFERS"
