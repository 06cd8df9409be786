"""Floors are measured; a key without a study has none."""

from __future__ import annotations

import json

import pytest

from weighbridge.errors import BadInputError
from weighbridge.parity.check.distances import Distance
from weighbridge.parity.reference.floors import FLOORS, Floor, floor, floor_key

STUDIED = [("torch", "cpu", "float32"), ("mlx", "cpu", "float32"), ("reference", "cpu", "float32")]
U32 = 2.0**-24


@pytest.mark.parametrize("key", STUDIED, ids="/".join)
def test_what_the_tests_run_on_was_studied(key):
    found = floor(*key)
    assert found is not None
    assert found.cases >= 10
    assert found.null_99_9 <= found.k < 5.6  # the smallest fault of the catalogue
    assert found.studied_on


def test_a_neighbouring_key_is_never_used():
    assert floor("mlx", "gpu", "float32") is None
    assert floor("torch", "cpu", "float32", "float16") is None


def test_k_follows_from_the_figures_beside_it():
    for key, study in json.loads(FLOORS.read_text())["studies"].items():
        for k, part in (("k", "whole"), ("k_token", "worst_token")):
            figures = study["null_99_9"][part], study["largest"][part]
            assert study[k] == pytest.approx(max(figures), abs=0.0111), key


def test_a_blas_with_a_study_of_its_own_is_judged_by_it(tmp_path):
    study = {"k_token": 3.0, "c": 0.5, "null_99_9": {"whole": 1.5}, "cases": 9, "studied_on": []}
    path = tmp_path / "floors.json"
    plain, own = (
        floor_key("mlx", "cpu", "float32"),
        floor_key("mlx", "cpu", "float32", blas="wheel"),
    )
    path.write_text(json.dumps({"studies": {plain: {"k": 2, **study}, own: {"k": 5, **study}}}))
    found = {
        blas: floor("mlx", "cpu", "float32", blas=blas, path=path) for blas in ("wheel x", "mkl")
    }
    assert {blas: it and it.k for blas, it in found.items()} == {"wheel x": 5.0, "mkl": 2.0}


def test_a_damaged_study_is_refused(tmp_path):
    path = tmp_path / "floors.json"
    path.write_text('{"studies": []}')
    with pytest.raises(BadInputError, match="not a null study"):
        floor("mlx", "cpu", "float32", path=path)


def test_errors_below_the_floor_are_not_told_apart():
    studied = Floor(k=2.0, k_token=3.0, c=0.5, null_99_9=1.9, cases=9)
    exact, rounded = Distance(0.0, 0.0), Distance(0.9 * U32, 1.4 * U32)
    assert studied.allowed(rounded, exact) <= 1
    assert studied.allowed(Distance(1.1 * U32, 0.0), exact) > 1


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_not_finite_is_never_allowed(wrong):
    studied = Floor(k=2.0, k_token=3.0, c=0.5, null_99_9=1.9, cases=9)
    assert studied.allowed(Distance(wrong, 0.0), Distance(1.0, 1.0)) > 1
    assert studied.allowed(Distance(0.0, wrong), Distance(1.0, 1.0)) > 1
