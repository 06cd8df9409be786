"""What a tensor may undergo: as llama.cpp does it, and each to its own shape."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.converters.gguf.models import permuted
from weighbridge.converters.gguf.rules import RULES, Wanted, interleaved

NAMED = {rule.name: rule for rule in RULES}


@pytest.mark.parametrize("shape", [(24,), (24, 5)])
@pytest.mark.parametrize("heads", [1, 2, 3, 6])
def test_heads_are_interleaved_as_llama_cpp_does(shape, heads):
    rows = np.random.default_rng(0).normal(size=shape)
    want = permuted(torch.from_numpy(rows), heads).numpy()
    assert np.array_equal(interleaved(rows, heads), want)


@pytest.mark.parametrize(
    ("have", "wanted", "names"),
    [
        ((6, 4), Wanted((6, 4)), {"same", "plus one"}),
        ((6, 4), Wanted((6, 4), 3), {"same", "plus one", "heads interleaved"}),
        ((6, 4), Wanted((6, 4), 2), {"same", "plus one"}),
        ((4, 6), Wanted((6, 4)), {"transposed"}),
        ((7, 4), Wanted((6, 4)), {"first rows"}),
        ((2, 6, 4), Wanted((2, 3, 4)), {"first half", "second half", "even rows", "odd rows"}),
        ((6,), Wanted((4,)), set()),
        ((), Wanted((4,)), set()),
    ],
)
def test_a_rule_is_asked_only_for_shapes_that_it_makes(have, wanted, names):
    assert {rule.name for rule in RULES if rule.fits(have, wanted)} == names


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize("have", [(6,), (6, 6), (8, 6), (6, 8), (2, 6, 4), (2, 4, 6), (3, 6, 6)])
@pytest.mark.parametrize("want", [(6,), (6, 6), (4, 6), (6, 4), (2, 3, 4), (3, 3, 6)])
def test_a_rule_fits_where_it_makes_the_shape_and_nowhere_else(rule, have, want):
    array, wanted = np.arange(float(np.prod(have))).reshape(have), Wanted(want, 3)
    if rule.fits(have, wanted):
        assert rule.act(array, wanted).shape == want
        return
    try:
        made = rule.act(array, wanted)
    except (IndexError, ValueError):
        return  # what does not fit cannot be done
    assert made.shape != want or np.array_equal(made, array)  # all rows are no first rows


def test_no_two_rules_do_the_same():
    square = np.arange(36.0).reshape(6, 6)
    halves = np.arange(2 * 8 * 8.0).reshape(2, 8, 8)
    for array, want in ((square, (6, 6)), (halves, (2, 4, 8)), (halves, (2, 8, 4))):
        wanted = Wanted(want, 1)
        made = [
            rule.act(array, wanted).tobytes() for rule in RULES if rule.fits(array.shape, wanted)
        ]
        assert len(set(made)) == len(made)
