"""A large source runs several times only where a candidate errs more than one run of it allows."""

from __future__ import annotations

import copy

import pytest
import torch

import weighbridge
from weighbridge.converters.models import Model
from weighbridge.converters.runtimes.torch import build_module
from weighbridge.parity.check.check import check
from weighbridge.parity.check.distances import Distance
from weighbridge.parity.goldens.recorder import Recorder
from weighbridge.parity.reference import several

ROUGH = Distance(1.0, 1.0)


@pytest.fixture
def source(fixtures):
    return weighbridge.open(fixtures / "llama" / "model")


@pytest.fixture
def runs(monkeypatch):
    """Take every source for a large one; list how often one runs several times."""
    asked, in_several_runs = [], several.in_several_runs

    def noted(*about):
        asked.append(in_several_runs(*about))
        return asked[-1]

    monkeypatch.setattr(several, "LARGE", 0)
    monkeypatch.setattr(several, "in_several_runs", noted)
    return asked


def candidate(source, off=0.0):
    """Return SOURCE as a module whose first weight is scaled by one and OFF."""
    module = copy.deepcopy(build_module(source))
    with torch.no_grad():
        module.model.layers[0].mlp.down_proj.weight *= 1 + off
    return Model("off", "torch", None, {}, factory=module, declared=source.signature)


def structure(source, off):
    return check(source, candidate(source, off), quick=True).stage("structure")


def test_a_right_candidate_is_judged_by_one_run(source, runs):
    stage = structure(source, 0.0)
    assert stage.status == "pass"
    assert "the source runs several times before a candidate differs" in stage.detail
    assert not runs


def test_a_wrong_candidate_is_judged_by_several_runs(source, runs):
    stage = structure(source, 0.01)
    assert stage.status == "fail"
    own = [row["source_error"] for row in stage.figures["rows"]]
    assert own == [it.whole for row in runs[0] for it in row.values()]


def test_the_verdict_is_that_of_several_runs(source, runs, monkeypatch):
    assert structure(source, 0.01).status == "fail"
    rough = lambda *about: tuple(dict.fromkeys(it, ROUGH) for it in about[-1].errors)  # noqa: E731
    monkeypatch.setattr(several, "in_several_runs", rough)
    stage = structure(source, 0.01)
    assert stage.status == "pass"
    assert "several times" not in stage.detail


def test_a_source_that_is_kept_for_later_runs_several_times_at_once(source, runs):
    golden = Recorder(source).record("verdict", (), None)
    assert not golden.more
    assert len(runs) == 1
