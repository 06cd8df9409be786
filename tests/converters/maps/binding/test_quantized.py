"""Quantized weights follow a map as the weights that they stand for do, code for code."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.converters.checkpoints.base import Header
from weighbridge.converters.maps import WeightMap, apply
from weighbridge.converters.maps.binding.quantized import move_blocks, quantized_plan
from weighbridge.converters.quantization import Blocks, Scheme
from weighbridge.converters.values import Dense
from weighbridge.errors import MismatchError

SCHEMES = [
    *(Scheme(bits, size) for bits in (2, 3, 4, 5, 6, 8) for size in (32, 64, 128)),
    *(Scheme(4, 32, "mxfp4"), Scheme(8, 32, "mxfp8"), Scheme(4, 16, "nvfp4")),
]
MOVED = {
    "renamed": ("x <-> y", {"x": (3, 128)}),
    "renamed with its axes": ("x [o i] <-> y [o i]", {"x": (3, 128)}),
    "stacked": ("x.{e}.w [o i] <-> y [e o i]", {f"x.{e}.w": (3, 128) for e in range(3)}),
    "taken apart": ("y [e o i] <-> x.{e}.w [o i]", {"y": (2, 3, 128)}),
    "split by rows": (
        "x [(q + k) i] <-> q [q i], k [k i] where q = 4",
        {"x": (6, 128)},
    ),
    "joined by rows": ("q [q i], k [k i] <-> x [(q + k) i]", {"q": (4, 128), "k": (2, 128)}),
    "halves of experts": (
        "x [e (g + u) i] <-> g [e g i], u [e u i] where g = 4",
        {"x": (2, 8, 128)},
    ),
    "heads interleaved": (
        "x [(h two d) i] <-> y [(h d two) i] where h = 2; two = 2".replace(";", ","),
        {"x": (12, 128)},
    ),
    "rows of experts swapped": ("x [e o i] <-> y [o e i]", {"x": (2, 3, 128)}),
    "columns in order of heads, heads whole groups": (
        "x [o (h d)] <-> y [h o d] where h = 2",
        {"x": (3, 256)},
    ),
    "columns split at a group": (
        "x [o (a + b)] <-> y [o a], z [o b] where a = 128",
        {"x": (3, 256)},
    ),
}
REFUSED = {
    "transposed": ("x [o i] <-> y [i o]", {"x": (128, 128)}, "columns do not stay columns"),
    "groups parted": (
        "x [o (a + b)] <-> y [o a], z [o b] where a = 48",
        {"x": (3, 128)},
        "parts groups of",
    ),
    "scaled": ("x [o i] <-> y [o i] * 2", {"x": (3, 128)}, "values of codes"),
}


def blocks_of(shape, scheme, rng, dtype=np.float16):
    groups = (*shape[:-1], shape[-1] // scheme.group_size)
    codes = rng.integers(0, 1 << scheme.bits, shape)
    if not scheme.affine:
        parts = {"scales": rng.integers(100, 126, groups).astype(np.uint8)}
    else:
        parts = {part: rng.normal(size=groups).astype(dtype) for part in ("scales", "biases")}
    return Blocks.of_codes(codes, parts, scheme)


def plan_of(text, shapes):
    return WeightMap.parse(text).bind({n: Header("F64", shape) for n, shape in shapes.items()})


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("case", MOVED)
def test_blocks_moved_are_the_weights_moved(case, scheme):
    text, shapes = MOVED[case]
    rng = np.random.default_rng(3)
    blocks = {name: blocks_of(shape, scheme, rng) for name, shape in shapes.items()}
    plan = plan_of(text, shapes)
    moved = move_blocks(plan, blocks)
    dense = apply(plan, {name: Dense(block.values()) for name, block in blocks.items()})
    assert moved.keys() == dense.keys()
    for name, weight in dense.items():
        np.testing.assert_array_equal(moved[name].values(), weight.array)


@pytest.mark.parametrize("case", MOVED)
def test_the_way_back_gives_the_same_bytes(case):
    text, shapes = MOVED[case]
    rng = np.random.default_rng(4)
    blocks = {name: blocks_of(shape, Scheme(3, 32), rng) for name, shape in shapes.items()}
    moved = move_blocks(plan_of(text, shapes), blocks)
    there = WeightMap.parse(text).inverse()
    headers = {name: Header("F64", block.shape) for name, block in moved.items()}
    back = move_blocks(there.bind(headers, sizes=plan_of(text, shapes).sizes), moved)
    for name, block in blocks.items():
        for part, array in block.parts.items():
            assert back[name].parts[part].tobytes() == array.tobytes()


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_change_codes_is_refused_by_name(case):
    text, shapes, why = REFUSED[case]
    rng = np.random.default_rng(5)
    blocks = {name: blocks_of(shape, Scheme(4, 32), rng) for name, shape in shapes.items()}
    with pytest.raises(MismatchError, match=why) as error:
        move_blocks(plan_of(text, shapes), blocks)
    assert "on x" in str(error.value)


def test_weights_that_become_one_must_be_quantized_alike():
    text, shapes = MOVED["joined by rows"]
    rng = np.random.default_rng(6)
    blocks = {
        name: blocks_of(shape, Scheme(bits, 32), rng)
        for (name, shape), bits in zip(shapes.items(), (4, 8), strict=True)
    }
    with pytest.raises(MismatchError, match="quantized alike; here are 4-bit affine"):
        move_blocks(plan_of(text, shapes), blocks)


def test_a_quantized_and_a_dense_weight_do_not_become_one():
    text, shapes = MOVED["joined by rows"]
    stored = {"q": Header("U32", (4, 16)), "q.scales": Header("F16", (4, 4))}
    stored |= {"q.biases": Header("F16", (4, 4)), "k": Header("F64", (2, 128))}
    with pytest.raises(MismatchError, match="4-bit affine, groups of 32 and not quantized"):
        quantized_plan(plan_of(text, shapes), stored, {"q": Scheme(4, 32)})


@given(st.integers(0, 2**32 - 1), st.sampled_from(SCHEMES))
def test_codes_of_blocks_are_what_they_were_made_of(seed, scheme):
    codes = np.random.default_rng(seed).integers(0, 1 << scheme.bits, (2, 128))
    groups = (2, 128 // scheme.group_size)
    ones = np.ones(groups, np.float32) if scheme.affine else np.full(groups, 127, np.uint8)
    parts = {"scales": ones} | ({"biases": 0 * ones} if scheme.affine else {})
    assert np.array_equal(Blocks.of_codes(codes, parts, scheme).codes(), codes)
