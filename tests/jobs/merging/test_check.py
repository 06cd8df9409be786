"""What the check of a merge measures, and what it never calls a pass."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from weighbridge import jobs
from weighbridge.errors import MismatchError, UnsupportedError
from weighbridge.tests.support.quantized_bases import (
    IDS,
    QUERY,
    STEP,
    changed,
    edited,
    merged,
    outputs,
    quantized,
    trained,
    without,
)


def test_the_check_measures_what_mlx_lm_measures(base, small, tmp_path):
    np.savez(tmp_path / "ids.npz", input_ids=np.array(IDS))
    options = jobs.Options(inputs=tmp_path / "ids.npz")
    found = merged(base, small, tmp_path / "merged", options, promote=True)
    figures = found.facts["figures"]
    wanted, bare, real = outputs(base, small), outputs(base), outputs(found.target)
    norm = np.linalg.norm
    assert figures["merge"] == pytest.approx(norm(real - wanted) / norm(wanted), rel=0.01)
    assert figures["effect"] == pytest.approx(norm(wanted - bare) / norm(bare), rel=0.01)
    stage = found.verdict.stage("structure")
    assert stage.status == "pass"
    assert "mlx-lm's own loader took every tensor" in stage.detail
    assert found.status == "PASS"


def test_where_no_other_loader_reads_the_adapter_the_stage_says_so(
    base, large, tmp_path, monkeypatch
):
    def absent(*_):
        raise UnsupportedError("not installed")

    monkeypatch.setattr("weighbridge.converters.runtimes.native.mlx_lm.mlx_lm_runner", absent)
    found = merged(base, large, tmp_path / "merged", jobs.Options())
    stage = found.verdict.stage("structure")
    assert stage.status == "pass"
    assert "loaded by Weighbridge alone" in stage.detail


def test_what_its_own_loader_does_not_take_whole_is_never_a_pass(
    base, large, tmp_path, monkeypatch
):
    def partial(*_):
        raise MismatchError("not loaded whole", ["a tensor is loaded into nothing"])

    monkeypatch.setattr("weighbridge.converters.runtimes.native.mlx_lm.mlx_lm_runner", partial)
    found = merged(base, large, tmp_path / "merged", jobs.Options())
    assert found.status == "UNVERIFIED"
    assert "loaded into nothing" in found.verdict.stage("structure").detail


def spoilt(base, target, name):
    """Copy BASE to TARGET with a scale of the module NAME that is not a number."""

    def spoil(tensors):
        scales = np.array(tensors[f"{name}.scales"])
        scales[0, 0] = np.nan
        return tensors | {f"{name}.scales": mx.array(scales)}

    return edited(base, target, spoil)


def test_outputs_that_are_no_numbers_are_never_a_pass(base, large, tmp_path):
    broken = spoilt(base, tmp_path / "broken", "model.layers.1.self_attn.v_proj")
    found = merged(broken, large, tmp_path / "merged", jobs.Options())
    assert found.status == "UNVERIFIED"
    assert "not finite" in found.verdict.stage("structure").detail


@pytest.mark.parametrize("how", [{}, {"promote": True}, {"force": True}])
def test_nothing_is_merged_into_what_is_no_number(base, large, tmp_path, how):
    broken = spoilt(base, tmp_path / "broken", f"model.layers.1.{QUERY}")
    with pytest.raises(MismatchError, match="NaN or infinity in weights") as refused:
        merged(broken, large, tmp_path / "merged", **how)
    [problem] = refused.value.problems
    assert problem == f"model.layers.1.{QUERY}.weight: the base holds NaN or infinite numbers there"
    assert not (tmp_path / "merged").exists()


def test_an_adapter_of_nothing_has_nothing_to_lose(base, large, tmp_path):
    nothing = edited(large, tmp_path / "nothing", lambda it: without(without(it, 0), 1))
    found = merged(base, nothing, tmp_path / "merged", jobs.Options())
    assert found.status == "PASS"
    assert "nothing to lose" in found.verdict.stage("structure").detail
    assert "change no weight" in found.verdict.stage("fingerprints").detail


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=["float16", "bfloat16"])
def test_dora_that_was_not_trained_is_an_update_of_nothing(tmp_path, dtype):
    base = quantized(tmp_path, dtype=dtype)
    adapter = trained(tmp_path / "adapter", base, 3 * STEP, kind="dora")

    def untrained(halves):
        fresh = {n: a / 1.01 if ".0." in n and n.endswith(".m") else a for n, a in halves.items()}
        return without(fresh, 0)

    half = edited(adapter, tmp_path / "half", untrained)
    found = merged(base, half, tmp_path / "merged", jobs.Options())
    assert found.status == "PASS"
    assert not [name for name in changed(found.target, base) if ".0." in name]
    assert "2 of 2 updates" in found.verdict.stage("fingerprints").detail
