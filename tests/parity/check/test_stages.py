"""Each stage answers one question, from values alone."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from weighbridge.converters.models import Port, Signature
from weighbridge.parity.check.distances import Distance
from weighbridge.parity.check.stages import (
    auxiliary_stage,
    error_stage,
    fingerprint_stage,
    join,
    output_problems,
    outputs_stage,
)
from weighbridge.parity.goldens.golden import Golden
from weighbridge.parity.probes.probes import Probe
from weighbridge.parity.reference.floors import Floor
from weighbridge.parity.weights.reference_index import Explanation
from weighbridge.parity.weights.sketches.sketch import sketch

WANTED = {"y": np.array([[3.0, 4.0]]), "label": np.array([2])}
OUTPUTS = {
    "equal": ({}, ""),
    "narrow": ({"y": WANTED["y"].astype(ml_dtypes.bfloat16)}, ""),
    "missing": ({"y": None}, "p: y is missing"),
    "shape": ({"y": np.ones((2, 2))}, "p: y has shape [2, 2], expected [1, 2]"),
    "integer": ({"y": np.array([[3, 4]])}, "p: y has dtype int64, expected one like float64"),
    "label": ({"label": np.array([1])}, "p: label differs in 1 of 1 integers"),
    "NaN": ({"y": np.array([[np.nan, 4.0]])}, "p: y has 1 NaN"),
    "infinity": ({"y": np.array([[np.inf, 4.0]])}, "p: y has 1 unexpected infinity"),
}
FLOOR = Floor(k=2.0, k_token=3.0, c=0.25, null_99_9=1.9, cases=9)
SIGNATURE = Signature((), (Port("y", "float32", (1, 2), ""), Port("label", "int64", (1,), "")))
PROBE = Probe("p", {})
GOLDEN = Golden("ref", SIGNATURE, (PROBE,), {"stored": (WANTED,)}, {})


@pytest.mark.parametrize(("changes", "said"), OUTPUTS.values(), ids=OUTPUTS)
def test_outputs_are_looked_at_before_any_error(changes, said):
    found = {name: array for name, array in (WANTED | changes).items() if array is not None}
    assert "; ".join(output_problems("p", found, WANTED, {})) == said
    stage = outputs_stage(GOLDEN, [PROBE], [found], [WANTED])
    assert stage.status == ("fail" if said else "pass")


@pytest.mark.parametrize(("error", "status"), [(1.9e-6, "pass"), (2.1e-6, "fail")])
def test_the_allowed_error_is_k_times_the_sources_own(error, status):
    found = WANTED | {"y": WANTED["y"] * (1 + error)}
    own = [{"y": Distance(1e-6, 1e-6), "label": Distance(0.0, 0.0)}]
    stage = error_stage("structure", GOLDEN, [PROBE], [found], [WANTED], (FLOOR, own))
    assert stage.status == status
    assert stage.figures["rows"][0]["ratio"] == pytest.approx(error / 1e-6, rel=1e-3)


def test_one_bad_token_is_enough():
    wanted = {"y": np.ones((1, 400, 4))}
    found = {"y": wanted["y"].copy()}
    found["y"][0, 7] *= 1 + 4e-6
    golden = Golden("ref", Signature((), SIGNATURE.outputs[:1]), (PROBE,), {}, {})
    own = [{"y": Distance(1e-6, 1e-6)}]
    stage = error_stage("structure", golden, [PROBE], [found], [wanted], (FLOOR, own))
    assert stage.figures["rows"][0]["ratio"] < 1
    assert stage.status == "fail"


def test_a_source_that_overflows_in_a_dtype_cannot_judge_it():
    own = [{"y": Distance(float("nan"), float("nan"))}]
    stage = error_stage("precision", GOLDEN, [PROBE], [WANTED], [WANTED], (FLOOR, own))
    assert stage.status == "unverified"


def test_a_source_that_is_useless_in_a_dtype_excuses_nobody():
    wanted = {"y": np.array([[3.0, 4.0], [-3.0, -4.0]])}
    golden = Golden("ref", SIGNATURE, (PROBE,), {"stored": (wanted,)}, {})
    calibration = (FLOOR._replace(dtype="float16"), [{"y": Distance(1.0, 1.0)}])
    found = [{"y": wanted["y"] * 0.4}]
    stage = error_stage("precision", golden, [PROBE], found, [wanted], calibration)
    assert stage.status == "fail"
    assert "hardly leaves one token apart from another" in stage.detail
    assert error_stage("structure", golden, [PROBE], found, [wanted], calibration).status == "pass"


@pytest.mark.parametrize(
    ("own", "error", "status"), [(1.0, 0.6, "unverified"), (0.1, 0.6, "fail"), (0.4, 0.6, "fail")]
)
def test_where_a_source_ships_useless_as_it_is_only_more_error_than_its_own_is_a_fault(
    own, error, status
):
    wanted = {"y": np.array([[3.0, 4.0], [-3.0, -4.0]])}
    sketches = {"w": sketch(np.ones((9, 9), ml_dtypes.bfloat16))}
    golden = Golden("ref", SIGNATURE, (PROBE,), {"stored": (wanted,)}, {}, sketches)
    floor = FLOOR._replace(dtype="bfloat16")
    calibration = (floor, [{"y": Distance(own, own)}])
    found = [{"y": wanted["y"] * (1 - error)}]
    stage = error_stage("precision", golden, [PROBE], found, [wanted], calibration)
    assert stage.status == status


def test_weights_are_counted_by_kind_and_faults_are_quoted():
    good = Explanation("a", "a", "equal", "", ok=True)
    bad = Explanation("b", "b", "unmerged", "equals the base", ok=False)
    assert fingerprint_stage([good, good], []).detail == "2 weights explained: 2 equal"
    stage = fingerprint_stage([good, bad], ["c carries d"])
    assert stage.status == "fail"
    assert stage.figures["problems"] == ["b: unmerged, equals the base", "c carries d"]


def test_inputs_are_compared_by_name_and_role():
    ids, mask = Port("ids", "int64", (1, 2), "token_ids"), Port("mask", "int64", (1, 2), "mask")
    both, one = Signature((ids, mask), ()), Signature((ids,), ())
    assert auxiliary_stage(both, both).status == "pass"
    assert auxiliary_stage(both, one).status == "fail"
    assert auxiliary_stage(one, both).status == "unverified"
    assert auxiliary_stage(both, None).status == "skipped"


def test_long_lists_are_cut_and_say_so():
    assert join([str(number) for number in range(9)]).endswith("; and 4 more")
