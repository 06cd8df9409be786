"""Mirrors converters/runtimes/live.py: how far apart two live models are."""

from __future__ import annotations

import math

import numpy as np
import pytest

from weighbridge.converters.models import Port, Signature
from weighbridge.converters.runtimes.live import live_difference
from weighbridge.parity.probes.probes import Probe

SIGNATURE = Signature(
    (
        Port("x", ("batch", "sequence", 3), "float32", "hidden"),
        Port("mask", ("batch", "sequence"), "int64", "attention_mask"),
    ),
    (Port("y", ("batch", "sequence", 3), "float32", "hidden"),),
)


class Fake:
    """A runner that computes FUNCTION of the input x."""

    runtime, signature = "fake", SIGNATURE

    def __init__(self, function):
        self.function = function

    def run(self, inputs):
        return {"y": self.function(inputs["x"])}


def probe(name="p", mask=None, scale=1.0):
    x = scale * np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float32)
    return Probe(name, {"x": x, "mask": np.ones((2, 4), np.int64) if mask is None else mask})


SAME = Fake(lambda x: x)


def test_the_figure_is_the_relative_norm_of_the_difference():
    assert live_difference(SAME, Fake(lambda x: x * 1.25), [probe()]) == pytest.approx(0.25)
    assert live_difference(SAME, SAME, [probe()]) == 0


def test_the_worst_probe_counts():
    found = live_difference(
        SAME, Fake(lambda x: x + 1), [probe(scale=100.0), probe(), probe(scale=9.0)]
    )
    assert found == live_difference(SAME, Fake(lambda x: x + 1), [probe()])


def test_positions_that_the_mask_excludes_do_not_count():
    mask = np.ones((2, 4), np.int64)
    mask[1, 2:] = 0

    def spoilt(x):
        y = x.copy()
        y[1, 2:] = np.nan
        return y

    assert live_difference(SAME, Fake(spoilt), [probe(mask=mask)]) == 0
    assert live_difference(SAME, Fake(spoilt), [probe()]) == math.inf


@pytest.mark.parametrize(
    "function",
    [lambda x: x[:, :2], lambda x: x * np.nan, lambda x: np.where(x == x.max(), np.inf, x)],
    ids=["shape", "nan", "infinity"],
)
def test_what_cannot_be_compared_is_infinitely_far(function):
    assert live_difference(SAME, Fake(function), [probe()]) == math.inf


@pytest.mark.parametrize("strange", [np.inf, np.nan])
def test_what_is_not_finite_on_both_sides_alike_proves_nothing(strange):
    odd = Fake(lambda x: np.where(x > 0, x, strange))
    assert live_difference(odd, odd, [probe()]) == math.inf


def test_no_probes_prove_nothing():
    assert live_difference(SAME, SAME, []) == math.inf
