"""Cuts make both sides equal, and are found where there are any."""

from collections import Counter

import pytest

from weighbridge.converters.maps.infer.balance import balances
from weighbridge.converters.maps.infer.families import fold
from weighbridge.converters.maps.infer.parts import alignments, parts_of

QKV = {"q.weight": (32, 24), "k.weight": (16, 24), "v.weight": (16, 24), "o.weight": (24, 32)}
GATED = {"gate.w": (40, 24), "up.w": (40, 24), "down.w": (24, 40)}


def keys(families, cuts):
    return Counter(part.key for part in parts_of(families, cuts))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (QKV, {"qkv": (64, 24), "out": (24, 32)}),
        (QKV, {"q": (32, 24), "kv": (24, 32), "out": (32, 24)}),
        ({"qkv": (64, 24), "out": (24, 32)}, QKV),
        (GATED, {"gate_up": (24, 80), "down": (40, 24)}),
        ({"x.in": (48, 10), "b": (48,)}, {"x.i": (24, 10), "x.j": (24, 10), "b": (48,)}),
    ],
)
def test_fused_tensors_are_cut_into_those_of_the_other_side(left, right):
    one, other = fold(left), fold(right)
    found = balances(one, other)
    assert found
    assert all(keys(one, cuts.left) == keys(other, cuts.right) for cuts in found)


def test_experts_in_one_tensor_have_the_sizes_of_experts_apart():
    apart = fold({f"experts.{e}.w": (40, 24) for e in range(4)})
    (cuts,) = balances(apart, fold({"experts.w": (4, 40, 24)}))
    assert not cuts.left
    assert not cuts.right


@pytest.mark.parametrize("right", [{"a": (5, 6)}, {"a": (40, 24)}, {"a": (2, 12, 24)}])
def test_what_cannot_be_equal_is_not_made_so(right):
    assert balances(fold(GATED), fold(right)) == []


def test_the_likeliest_layout_keeps_matrices_and_moves_channels():
    def first(left, right):
        (one,), (other,) = parts_of(fold({"w": left}), {}), parts_of(fold({"w": right}), {})
        return alignments(one, other)[0]

    assert first((24, 24), (24, 24)) == (0, 1)
    assert first((24, 16), (16, 24)) == (1, 0)
    assert first((8, 3, 3, 3), (8, 3, 3, 3)) == (0, 3, 1, 2)
    assert first((1, 24), (24, 1)) == (0,)
