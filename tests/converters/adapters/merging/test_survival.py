"""The figures of a merge follow their definitions, and the verdict follows the figures."""

from __future__ import annotations

import json

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.converters.adapters.merging.survival import (
    Sums,
    Survival,
    judge,
    lines,
    refusal,
    worst_first,
)
from weighbridge.tests.support.adapters.survival import measure

normal = np.random.default_rng(0).normal
PASS = Survival(1.0, 0.99, 0.1, 3.0, 9, 9)
WARN = Survival(0.8, 0.8, 0.6, 0.4, 9, 9)
LOST = Survival(0.1, 0.05, 2.9, 0.04, 9, 9)


def test_the_figures_are_those_of_their_definition():
    before, delta = normal(size=(7, 5)), normal(size=(7, 5))
    real = before + 0.8 * delta + 0.1 * normal(size=(7, 5))
    found = measure(before, before + delta, real, step=0.25)
    d, r = delta.ravel(), (real - before).ravel()
    assert found.gain == pytest.approx(r @ d / (d @ d))
    assert found.cosine == pytest.approx(r @ d / np.linalg.norm(r) / np.linalg.norm(d))
    assert found.relative_error == pytest.approx(np.linalg.norm(r - d) / np.linalg.norm(d))
    assert found.step_ratio == pytest.approx(np.sqrt(np.mean(d * d)) / 0.25)
    assert (found.changed, found.size) == (35, 35)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@given(st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=99))
def test_without_a_step_it_is_the_median_spacing_of_the_dtype(dtype, values):
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    real = np.array(values).astype(kind)
    wanted = real.astype(np.float64) + 1
    found = measure(real, wanted, real).step_ratio
    spacing = float(np.sort(_spacing(real))[(len(values) - 1) // 2])
    expected = 1 / spacing if spacing > 1e-308 else np.finfo(np.float64).max
    assert found == pytest.approx(expected, rel=1e-6)


def _spacing(array):
    """Return the distance to the next number away from zero, by stepping to it."""
    bits = f"u{array.dtype.itemsize}"
    sizes = np.abs(array)
    following = (sizes.view(bits) + np.array(1, bits)).view(array.dtype)
    return following.astype(np.float64) - sizes.astype(np.float64)


def test_sums_of_parts_are_those_of_the_whole():
    intended, realised = normal(size=(2, 30)), normal(size=(2, 30))
    parts = [Sums(), Sums()]
    for at, part in enumerate(parts):
        part.add(intended[at], realised[at].copy())
        part.see(realised[at])
    parts[0].join(parts[1])
    whole = Sums()
    whole.add(intended, realised.copy())
    whole.see(realised)
    np.testing.assert_allclose(parts[0].survival(), whole.survival(), rtol=1e-12)


def test_a_change_of_nothing_survives_if_nothing_changed():
    before = normal(size=(4, 3))
    assert measure(before, before, before, 1.0) == (1.0, 1.0, 0.0, 0.0, 0, 12)
    moved = measure(before, before, before + 1, 1.0)
    assert moved[:4] == (0.0, 0.0, 1.0, 0.0)
    assert judge(moved) == "refuse"


def test_figures_go_into_json_whatever_the_step_is():
    before = np.zeros((2, 2))
    found = measure(before, before + 1e99, before, 0.0)
    assert json.loads(json.dumps(found._asdict(), allow_nan=False))["step_ratio"] > 1e307


def test_mlx_merges_of_every_size_are_judged_by_what_is_left_of_them():
    """From a hundredth of a step, which 4 bits erase, to ten steps, which they keep."""
    weight = normal(size=(64, 256)).astype(np.float32)
    parts = mx.quantize(mx.array(weight), group_size=64, bits=4)
    before = np.array(mx.dequantize(*parts, group_size=64, bits=4))
    step = float(np.median(np.abs(np.array(parts[1]))))
    verdicts = []
    for ratio in (0.01, 0.1, 0.3, 0.5, 10):
        delta = (ratio * step * normal(size=weight.shape)).astype(np.float32)
        again = mx.quantize(mx.array(before + delta), group_size=64, bits=4)
        real = np.array(mx.dequantize(*again, group_size=64, bits=4))
        found = measure(before, before + delta, real, step)
        assert found.step_ratio == pytest.approx(ratio, rel=0.05)
        verdicts.append(judge(found))
    assert verdicts[:2] == ["refuse", "refuse"]
    assert verdicts[-1] == "pass"


VERDICTS = [
    (1.0, 1.0, "pass"), (0.9, 0.9, "pass"), (1.1, 0.9, "pass"), (1.11, 1.0, "warn"),
    (0.89, 1.0, "warn"), (1.0, 0.89, "warn"), (0.7, 0.7, "warn"), (1.3, 0.7, "warn"),
    (1.31, 1.0, "refuse"), (0.69, 1.0, "refuse"), (1.0, 0.69, "refuse"), (-1.0, -1.0, "refuse"),
    (float("nan"), 1.0, "refuse"), (1.0, float("nan"), "refuse"),
]  # fmt: skip


@pytest.mark.parametrize(("gain", "cosine", "verdict"), VERDICTS)
def test_the_verdict_needs_both_gain_and_cosine(gain, cosine, verdict):
    assert judge(Survival(gain, cosine, 0.0, 1.0, 1, 1)) == verdict


def test_the_worst_comes_first():
    found = {"a": PASS, "b": LOST, "c": WARN, "d": LOST._replace(gain=0.0), "e": PASS}
    assert [name for name, _ in worst_first(found)] == ["d", "b", "c", "a", "e"]
    assert [line.split()[-1] for line in lines(found)] == ["weight", "d", "b", "c", "a", "e"]


def test_a_table_has_its_columns_below_their_names():
    head, *rows = lines({"a": PASS, "b": LOST._replace(step_ratio=1e9)})
    for row in rows:
        assert len(row.rsplit(maxsplit=1)[0]) <= head.index("weight")
        assert row[head.index("weight")] != " "


def test_only_what_is_lost_is_refused_and_worst_first():
    found = {"a": PASS, "b": LOST, "c": WARN, "d": LOST._replace(gain=0.0)}
    assert [line.partition(":")[0] for line in refusal(found)] == ["d", "b"]
    assert "gain 0.10, cosine 0.05 are left" in refusal(found)[1]
    assert refusal({"a": PASS, "c": WARN}) == []
