"""Places that only look at fault are not named: another cut of the same computation, what follows a gap."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2Model

from weighbridge.parity.blame.blame import (
    Fault,
    LocalError,
    not_computed,
    without_other_cuts,
    without_other_outputs,
)
from weighbridge.parity.blame.diagnosis import diagnose
from weighbridge.parity.blame.evidence import INPUT, Observation
from weighbridge.parity.check.distances import Distance
from weighbridge.parity.check.live import compare_modules
from weighbridge.parity.weights.reference_index import Explanation

ROWS = np.random.default_rng(0).normal(size=(2, 9, 8))
WRONG = Distance(1.0, 1.0)


def worst(factors):
    """Return what is known of sites whose outputs are a multiple of what they should be."""
    return {
        site: (
            LocalError(site, "p", WRONG, WRONG, 9.0, 9.0),
            Observation(site, (ROWS * factor).astype(np.float32), ROWS, 1e-7),
        )
        for site, factor in factors.items()
    }


def test_a_scale_that_the_candidate_applies_after_the_module_is_no_fault():
    sites = {"embed": 0.125, f"layers.0{INPUT}": 8.0, "layers.1": 1.1}
    assert list(without_other_cuts(worst(sites))) == ["layers.1"]


@pytest.mark.parametrize("factor", [0.125, -1.0])
def test_a_scale_that_nothing_undoes_is_one(factor):
    sites = {"embed": factor, "layers.0": factor, "layers.1": 1.005, "layers.2": 0.995}
    assert list(without_other_cuts(worst(sites))) == list(sites)


def explained(*names):
    return [Explanation(name, name, "equal", "", ok=True) for name in names]


def test_a_layer_that_a_capture_lacks_is_named_and_nothing_after_it():
    reference = dict.fromkeys(("layer.0", "layer.0.dense", "layer.1", "layer.1.dense"), ROWS)
    known = explained("layer.0.dense.weight", "layer.1.dense.weight")
    found = not_computed(reference, {"layer.1.dense": ROWS, "layer.1": ROWS}, known)
    assert [(it.site, it.kind) for it in found] == [("layer.0", "skipped")]
    assert not_computed(reference, reference, known) == []


def test_a_layer_that_returns_before_its_parts_are_called_is_named_once():
    reference = dict.fromkeys(("layer.0", "layer.0.up", "layer.0.act", "layer.0.down"), ROWS)
    known = explained("layer.0.up.weight", "layer.0.down.weight")
    called = {"layer.0": ROWS}
    assert [it.site for it in not_computed(reference, called, known)] == ["layer.0"]
    own = [*known, *explained("layer.0.gain")]  # it may compute something itself
    assert [it.site for it in not_computed(reference, called, own)] == [
        "layer.0.up",
        "layer.0.down",
    ]


def test_what_has_no_weights_may_be_missing():
    reference = dict.fromkeys(("layer.0", "layer.0.dense", "layer.0.dropout"), ROWS)
    sites = {"layer.0.dense": ROWS}
    assert not_computed(reference, sites, explained("layer.0.dense.weight")) == []


def test_a_skipped_layer_behind_16_bit_weights_is_no_cast():
    given = ROWS.astype(np.float16)
    found = Observation("h.0", given.astype(np.float32), 2 * ROWS, 1e-7, inputs={"h.0|in": given})
    assert diagnose(found)[0] == "skipped"


def test_another_output_of_a_module_is_named_only_where_nothing_else_is():
    shape, other = Fault("tower", "shape", "", 9.0), Fault("tower.dense", "bias", "", 9.0)
    assert without_other_outputs([shape, other]) == [other]
    assert without_other_outputs([shape]) == [shape]


@pytest.mark.parametrize(
    ("site", "kind"), [("h.0.attn", "attention"), ("h.0.linear_attn", "position")]
)
def test_what_is_right_at_the_first_token_alone_is_told_by_where_it_is(site, kind):
    wanted = np.random.default_rng(0).normal(size=(2, 12, 8))
    found = wanted.copy()
    found[:, 1:] += 0.1 * np.random.default_rng(1).normal(size=(2, 11, 8))
    assert diagnose(Observation(site, found, wanted, 1e-7))[0] == kind


def test_scores_of_attention_that_one_projection_feeds_are_named():
    torch.manual_seed(0)
    config = GPT2Config(n_embd=32, n_head=4, n_layer=2, vocab_size=60, n_positions=32)
    right = GPT2Model(config).eval()
    for weight in right.parameters():
        if weight.ndim == 2:
            weight.data *= 1.5 / weight.shape[0] ** 0.5 / weight.std()
    wrong = copy.deepcopy(right)
    wrong.h[0].attn.scaling *= 1.05
    ids = np.random.default_rng(0).integers(3, 60, (2, 16))
    (fault,) = compare_modules(right, wrong, {"input_ids": ids}).faults
    assert (fault.site, fault.kind) == ("h.0.attn", "attention")
