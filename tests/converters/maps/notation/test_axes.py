"""Layouts of axes, against einops and plain slices."""

from __future__ import annotations

import einops
import numpy as np
import pytest

from weighbridge.converters.maps.binding.weightmap import WeightMap
from weighbridge.converters.maps.notation.axes import join, shape, show, split

SIZES = {"a": 2, "b": 3, "c": 4, "d": 5, "1": 1}

# axes of x, axes of y, the same written for einops
PERMUTATIONS = [
    ("[a b c]", "[c a b]", "a b c -> c a b"),
    ("[(a b) c]", "[b (c a)]", "(a b) c -> b (c a)"),
    ("[a 1 b]", "[b a]", "a 1 b -> b a"),
    ("[(a b c d)]", "[d (c b) 1 a]", "(a b c d) -> d (c b) 1 a"),
    ("[]", "[1 1]", " -> 1 1"),
]

# axes of x, axes of the parts, how numpy cuts x into them
CUTS = [
    ("[(a + b) c]", ["[a c]", "[c b]"], lambda x: [x[:2], x[2:].T]),
    ("[(c (a + b)) d]", ["[c d a]", "[c b d]"], lambda x: [
        x.reshape(4, 5, 5)[:, :2].transpose(0, 2, 1), x.reshape(4, 5, 5)[:, 2:]]),
    ("[d (c (a + b))]", ["[d (c a)]", "[d (c b)]"], lambda x: [
        x.reshape(5, 4, 5)[:, :, :2].reshape(5, 8), x.reshape(5, 4, 5)[:, :, 2:].reshape(5, 12)]),
    ("[((a + b) + c)]", ["[b]", "[a]", "[c]"], lambda x: [x[2:5], x[:2], x[5:]]),
    ("[((a d) + b) c]", ["[d a c]", "[b c]"], lambda x: [
        x[:10].reshape(2, 5, 4).transpose(1, 0, 2), x[10:]]),
]  # fmt: skip


def axes(text):
    return WeightMap.parse(f"x {text} <-> y {text}").rules[0].left[0].axes


@pytest.mark.parametrize(("left", "right", "pattern"), PERMUTATIONS)
def test_layouts_without_sums_are_those_of_einops(left, right, pattern):
    x = np.arange(np.prod(shape(axes(left), SIZES), dtype=int)).reshape(shape(axes(left), SIZES))
    ours = join(split(x, axes(left), SIZES), axes(right), SIZES)
    known = {name: size for name, size in SIZES.items() if name in pattern and name != "1"}
    np.testing.assert_array_equal(ours, einops.rearrange(x, pattern, **known))


@pytest.mark.parametrize(("whole", "parts", "cut"), CUTS)
def test_sums_cut_as_slices_do(whole, parts, cut):
    x = np.random.default_rng(0).normal(size=shape(axes(whole), SIZES))
    pieces = split(x, axes(whole), SIZES)
    for part, expected in zip(parts, cut(x), strict=True):
        np.testing.assert_array_equal(join(pieces, axes(part), SIZES), expected)
    np.testing.assert_array_equal(join(pieces, axes(whole), SIZES), x)


def test_axes_print_as_they_are_written():
    for text in ("[]", "[1]", "[(a (b + (c 1))) d]", "[((a + b) + c) 4]"):
        assert show(axes(text)) == text
