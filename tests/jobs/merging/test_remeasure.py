"""The check finds what a merge does wrong, from the files alone."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from weighbridge import jobs
from weighbridge.converters.adapters.merging.affected import AffectedWeight
from weighbridge.converters.models import open as open_model
from weighbridge.jobs.merging import from_original, plan, write
from weighbridge.jobs.merging import quantized as merging
from weighbridge.tests.support.quantized_bases import (
    STEP,
    merged,
    quantized,
    trained,
)


def drop(monkeypatch):
    affected_weights = plan.affected_weights
    monkeypatch.setattr(
        plan,
        "affected_weights",
        lambda changes, *rest: affected_weights(dict(list(changes.items())[1:]), *rest),
    )


def exaggerate(monkeypatch):
    wanted = AffectedWeight.wanted
    monkeypatch.setattr(
        AffectedWeight, "wanted", lambda self, at, it: it + 1.5 * (wanted(self, at, it) - it)
    )


def leave_unmerged(monkeypatch):
    make = write.make

    def wrong(job, name, measured):
        made = make(job, name, measured)
        if ".0." not in name:
            return made
        names = job.tensors.part_names(name)
        return {names[part]: array for part, array in job.tensors.parts(name).items()}

    monkeypatch.setattr(write, "make", wrong)


def turn_rows(monkeypatch):
    """Turn rows, or experts, about."""
    make = write.make

    def wrong(*arguments):
        return {name: array[::-1].copy() for name, array in make(*arguments).items()}

    monkeypatch.setattr(write, "make", wrong)


def touch_another(monkeypatch):
    beside = merging.beside_weights

    def wrong(job, folder):
        file = folder / "model.safetensors"
        tensors = {n: mx.array(np.array(it)) for n, it in mx.load(str(file)).items()}
        tensors["model.norm.weight"] *= 1.01
        mx.save_safetensors(str(file), tensors, {"format": "mlx"})
        return beside(job, folder)

    monkeypatch.setattr(merging, "beside_weights", wrong)


FAULTS = [drop, exaggerate, leave_unmerged, turn_rows, touch_another]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda it: it.__name__)
def test_the_check_finds_what_the_merge_does_wrong(base, large, tmp_path, monkeypatch, fault):
    fault(monkeypatch)
    found = merged(base, large, tmp_path / "merged", jobs.Options(), force=True)
    assert found.status == "DIFFERS"
    assert found.verdict.stage("fingerprints").status == "fail"


@pytest.mark.parametrize("fault", [drop, leave_unmerged, turn_rows], ids=lambda it: it.__name__)
def test_so_it_does_of_a_merge_into_the_original(tmp_path, monkeypatch, fault):
    base = quantized(tmp_path, bits=8)
    adapter = trained(tmp_path / "adapter", base, STEP)
    original = open_model(tmp_path / "original")
    whole = merged(base, adapter, tmp_path / "whole", jobs.Options(), original=original)
    assert whole.status == "PASS"
    if fault is drop:
        changes = from_original.changes_of
        monkeypatch.setattr(
            from_original, "changes_of", lambda it: dict(list(changes(it).items())[1:])
        )
    else:
        fault(monkeypatch)
    found = merged(base, adapter, tmp_path / "merged", jobs.Options(), original=original)
    assert found.verdict.stage("fingerprints").status == "fail"
