"""Bits shared out among weights: never more than there are, and hardly worse than the best there is."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from weighbridge.converters.quantization import Scheme
from weighbridge.converters.quantization.widths import Choice, chosen, hull, stored_bits
from weighbridge.errors import UnsupportedError

SCHEMES = [Scheme(bits, 64) for bits in (2, 3, 4, 5, 6, 8)]


def random_choices(seed, weights=4):
    random = np.random.default_rng(seed)
    sizes, sensitivities = random.integers(1, 9, weights), np.exp(random.standard_normal(weights))
    return {
        f"w{number}": [
            Choice(int(size * 64 * (it.bits * 64 + 32)), float(weight * 4.0**-it.bits), it)
            for it in SCHEMES
        ]
        for number, (size, weight) in enumerate(zip(sizes, sensitivities, strict=True))
    }


def totals(choices, schemes):
    found = [next(it for it in choices[n] if it.scheme == schemes[n]) for n in choices]
    return sum(it.bits for it in found), sum(it.error for it in found)


@pytest.mark.parametrize("seed", range(8))
def test_the_bits_suffice_and_the_error_is_near_the_least(seed):
    choices = random_choices(seed)
    least = sum(min(it.bits for it in some) for some in choices.values())
    for share in (1.0, 1.3, 1.8, 2.5, 9):
        most = least * share
        bits, error = totals(choices, chosen(choices, most))
        combinations = [
            (sum(it.bits for it in some), sum(it.error for it in some))
            for some in product(*choices.values())
        ]
        best = min(found for taken, found in combinations if taken <= most)
        assert bits <= most
        # between steps of the hull a choice of whole weights can be better, by one step at most
        assert best <= error <= 4 * best * 1.01


def test_a_sensitive_weight_gets_more_bits_than_an_equally_large_one():
    choices = {
        name: [Choice(64 * it.bits, weight * 4.0**-it.bits, it) for it in SCHEMES]
        for name, weight in (("rough", 1e-3), ("fine", 1.0))
    }
    found = chosen(choices, 64 * 8)
    assert found["fine"].bits > found["rough"].bits


def test_choices_that_are_worse_at_more_bits_are_never_taken():
    odd = [Choice(10, 1.0, SCHEMES[0]), Choice(20, 2.0, SCHEMES[1]), Choice(30, 0.5, SCHEMES[2])]
    assert [it.scheme.bits for it in hull(odd)] == [2, 4]
    assert chosen({"w": odd}, 25)["w"].bits == 2


def test_too_few_bits_are_refused_with_both_numbers():
    with pytest.raises(UnsupportedError, match="fewest bits that there can be are 128, not 100"):
        chosen({"w": [Choice(128, 0.0, SCHEMES[0])]}, 100)


def test_stored_bits_are_those_of_the_layout():
    assert stored_bits((8, 128), Scheme(3, 128), "BF16") == 8 * 128 * 3 + 8 * 32
    assert stored_bits((8, 128), Scheme(4, 32, "mxfp4"), "BF16") == 8 * 128 * 4 + 8 * 4 * 8
