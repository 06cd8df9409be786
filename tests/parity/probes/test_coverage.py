"""Probes fit both sides, and the report says what they could not reach."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from weighbridge.converters.models import Signature
from weighbridge.converters.models.families import encoder_signature
from weighbridge.parity.probes.coverage import fits, gaps, restrict
from weighbridge.parity.probes.probes import Probe, make_probes

ENCODER = encoder_signature({"vocab_size": 50, "hidden_size": 8, "max_position_embeddings": 100})


def resized(shape, limit=100):
    upper = (("sequence", limit),)
    inputs = tuple(replace(port, shape=shape, upper=upper) for port in ENCODER.inputs)
    return Signature(inputs, ENCODER.outputs)


TARGETS = {
    "fixed": resized((1, 24)),
    "shorter": resized(("batch", "sequence"), 60),
    "other names": resized(("rows", "columns")),
    "one row": resized((1, "sequence")),
}


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_probes_of_the_restricted_signature_fit_both_sides(target):
    probes = make_probes(restrict(ENCODER, target), tokenizer=None)
    assert len(probes) >= 2
    assert all(fits(target, probe) and fits(ENCODER, probe) for probe in probes)


def test_a_longer_target_does_not_widen_the_source():
    assert restrict(ENCODER, resized(("batch", "sequence"), 900)) == ENCODER


def test_an_unknown_target_restricts_nothing():
    assert restrict(ENCODER, None) == ENCODER


def test_gaps_count_rows_and_positions():
    ids = np.array([[5, 6, 7, 7]])
    probe = Probe("p", {"input_ids": ids, "attention_mask": np.ones_like(ids)})
    rows, positions = gaps(ENCODER, [probe])
    assert "47 of 50 vocabulary rows" in rows
    assert positions == "outputs at positions 4 to 99"


def test_without_a_probe_everything_is_a_gap():
    assert gaps(ENCODER, []) == ["no probe was run"]
