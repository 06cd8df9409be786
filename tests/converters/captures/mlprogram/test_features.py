"""Inputs checked against what a package declares."""

from __future__ import annotations

import numpy as np
import pytest

from weighbridge.converters.captures.mlprogram.features import (
    Feature,
    allows,
    check_inputs,
    flexible,
)
from weighbridge.converters.captures.mlprogram.toolkit import coremltools
from weighbridge.errors import MismatchError

FEATURES = {
    "input_ids": Feature("int32", ("1..4", "1..512")),
    "weights": Feature("float32", ("?", 3)),
}
GOOD = {"input_ids": np.zeros((2, 7), np.int64), "weights": np.zeros((9, 3), np.float16)}
# What is changed, and what is said of it.
BAD = [
    (
        {"input_ids": np.zeros((5, 7), int)},
        "input_ids has shape [5, 7], expected int32[1..4, 1..512]",
    ),
    ({"input_ids": np.zeros(7, int)}, "input_ids has shape [7], expected int32[1..4, 1..512]"),
    ({"input_ids": np.zeros((2, 7))}, "input_ids is float64, expected int32"),
    ({"weights": np.array([["a", "b", "c"]])}, "weights is <U1, expected float32"),
    ({"input_id": np.zeros(1)}, "input_id is no input; did you mean input_ids?"),
]


def test_inputs_within_their_bounds_are_accepted():
    check_inputs(FEATURES, GOOD)


@pytest.mark.parametrize(("change", "problem"), BAD)
def test_each_misfit_is_said(change, problem):
    with pytest.raises(MismatchError) as caught:
        check_inputs(FEATURES, {**GOOD, **change})
    assert problem in caught.value.problems


def test_the_summary_says_what_was_expected():
    with pytest.raises(MismatchError, match=r"input_ids int32\[1..4, 1..512\], weights float32"):
        check_inputs(FEATURES, {})


def test_bounds_are_inclusive():
    assert [allows("2..4", size) for size in (1, 2, 4, 5)] == [False, True, True, False]


def test_ranges_and_choices_are_read_from_a_description():
    array = coremltools.proto.FeatureTypes_pb2.ArrayFeatureType()
    assert flexible(array, (2, 3)) == (2, 3)
    for low, high in ((1, 1), (2, 8), (1, -1)):
        array.shapeRange.sizeRanges.add(lowerBound=low, upperBound=high)
    assert flexible(array, ()) == (1, "2..8", "1..")
    chosen = coremltools.proto.FeatureTypes_pb2.ArrayFeatureType()
    for size in (32, 16):
        chosen.enumeratedShapes.shapes.add(shape=[1, size])
    assert flexible(chosen, ()) == (1, "16|32")
