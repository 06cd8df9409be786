"""What a component becomes in the notation: traced from small functions, and proved on the text."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.converters.checkpoints.base import Header
from weighbridge.converters.maps import WeightMap
from weighbridge.converters.maps.learn.proof import Proof
from weighbridge.converters.maps.learn.rules.writing import write
from weighbridge.converters.maps.learn.trace.normal import normal_forms
from weighbridge.converters.maps.learn.trace.recording import record
from weighbridge.errors import UnsupportedError


def header(*shape, dtype="BF16"):
    return Header(dtype, shape)


def learned(function, headers, config=None):
    """Return the lines of the map of FUNCTION, after its proof."""
    trace = record(function, headers)
    text = str(write(trace, config or {}).map)
    Proof(WeightMap.parse(text), trace, config or {}).run()
    return text.splitlines()[1:]


def split_by_group(w):
    groups = w["qkv"].reshape(2, 5, 3, -1)
    q, k, v = mx.split(groups, [3, 4], axis=1)
    return {"q": q.flatten(0, 2), "k": k.flatten(0, 2), "v": v.flatten(0, 2)}


def joined_pairs(w):
    return {
        "w": mx.stack(
            [mx.concatenate([w[f"x.{e}.gate"], w[f"x.{e}.up"]], axis=0) for e in range(3)]
        )
    }


CASES = {
    "a name": (lambda w: {"b.c": w["a"]}, {"a": header(2)}, ["a <-> b.c"]),
    "a permutation": (
        lambda w: {"a": w["a"].transpose(0, 2, 3, 1)},
        {"a": header(4, 3, 2, 5)},
        ["a [a b c d] <-> [a c d b]"],
    ),
    "an axis of size 1": (
        lambda w: {"a": w["a"].moveaxis(2, 1)},
        {"a": header(6, 1, 4)},
        ["a [a 1 b] <-> [a b 1]"],
    ),
    "parts end to end": (
        lambda w: dict(zip("qkv", mx.split(w["a"], [8, 12], axis=0), strict=True)),
        {"a": header(16, 3)},
        ["a [(q + k + v) a] <-> q [q a], k [k a], v [v a]", "    where k = v = 4"],
    ),
    "parts within groups": (
        split_by_group,
        {"qkv": header(30, 7)},
        [
            "qkv [(a (q + k + v)) b] <-> q [(a q) b], k [(a k) b], v [(a v) b]",
            "    where q = 9, k = v = 3",
        ],
    ),
    "every other row": (
        lambda w: {"g": w["a"][..., ::2], "u": w["a"][..., 1::2]},
        {"a": header(3, 8)},
        ["a [a (b (g + u))] <-> g [a (b g)], u [a (b u)]", "    where g = u = 1"],
    ),
    "a family that is stacked": (
        lambda w: {"s": mx.stack([w[f"x.{e}.w"] for e in range(3)])},
        {f"x.{e}.w": header(2, 5) for e in range(3)},
        ["x.{e}.w [a b] <-> s [e a b]", "    where e = 3"],
    ),
    "two families in one": (
        joined_pairs,
        {f"x.{e}.{n}": header(4, 5) for e in range(3) for n in ("gate", "up")},
        [
            "x.{e}.gate [gate a], x.{e}.up [up a] <-> w [e (gate + up) a]",
            "    where e = 3, gate = up = 4",
        ],
    ),
    "a family that is cut out": (
        lambda w: {f"x.{e}.w": w["a"].reshape(3, 4, 5)[e].T for e in range(3)},
        {"a": header(12, 5)},
        ["a [(e a) b] <-> x.{e}.w [b a]", "    where e = 3"],
    ),
    "two names in a new axis": (
        lambda w: {"two": mx.stack([w["one"], w["other"]])},
        {"one": header(4), "other": header(4)},
        [
            "one [(one a)], other [(other a)] <-> two [(one + other) a]",
            "    where one = other = 1",
        ],
    ),
    "halves that change places": (
        lambda w: {"b": mx.concatenate(mx.split(w["a"].reshape(2, 2), 2, axis=0)[::-1], axis=0)},
        {"a": header(4)},
        ["a [((a b) + (c b))] <-> b [(c + a) b]", "    where a = c = 1, b = 2"],
    ),
    "heads turned": (
        lambda w: {"a": w["a"].reshape(4, 2, 3, -1).swapaxes(1, 2).reshape(24, 5)},
        {"a": header(24, 5)},
        ["a [(a b c) d] <-> [(a c b) d]", "    where b = 2, c = 3"],
    ),
    "an addition": (lambda w: {"a": w["a"] + 1.0}, {"a": header(7)}, ["a <-> same + 1"]),
    "a subtraction": (lambda w: {"a": w["a"] - 0.5}, {"a": header(7)}, ["a <-> same + -0.5"]),
    "a sign": (lambda w: {"a": -w["a"]}, {"a": header(7)}, ["a <-> same * -1"]),
    "a cast": (
        lambda w: {"a": w["a"].astype(mx.float32)},
        {"a": header(7)},
        ["a as bfloat16 <-> same as float32"],
    ),
    "bits of another width": (
        lambda w: {"b": w["a"].view(mx.uint32).flatten(-2)},
        {"a": header(2, 3, 16, dtype="U8")},
        ["a [a b c] bits uint8 <-> b [a (b c)] bits uint32", "    where c = 16"],
    ),
    "bits of another type": (
        lambda w: {"b": w["a"].view(mx.bfloat16)},
        {"a": header(3, 4, dtype="U16")},
        ["a [a b] bits uint16 <-> b [a b] bits bfloat16"],
    ),
    "a part only": (
        lambda w: {"b": w["a"][:3]},
        {"a": header(5, 2)},
        ["a => b", "    by $0 = Slice(#0) [0 0] [3 2] [1 1]"],
    ),
    "a tensor in two places": (
        lambda w: {"b": w["a"], "c": -8 * w["a"]},
        {"a": header(2)},
        [
            "a => b, c",
            "    by a = Constant() bfloat16 [] [-8.0];",
            "       b = Broadcast(a) [2];",
            "       $1 = Multiply(#0, b);",
            "       $0 = Copy(#0)",
        ],
    ),
    "a copy": (lambda w: {"b": w["a"], "c": w["a"]}, {"a": header(2)}, ["a <-> b", "c == b"]),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_done_to_a_tensor_is_one_rule(case):
    function, headers, lines = CASES[case]
    assert learned(function, headers) == lines


def test_computed_families_run_once_for_each_index():
    def dequantized(w):
        return {"s": mx.stack([mx.from_fp8(w[f"x.{e}.w"]) * w[f"x.{e}.scale"] for e in range(3)])}

    headers = {f"x.{e}.w": header(4, 5, dtype="F8_E4M3") for e in range(3)}
    headers |= {f"x.{e}.scale": header(4, 1) for e in range(3)}
    assert learned(dequantized, headers)[0] == "x.{e}.w, x.{e}.scale => s"


def test_computed_members_that_differ_are_no_family():
    def uneven(w):
        return {"s": mx.stack([mx.exp(w["x.0.w"]), mx.sin(w["x.1.w"])])}

    headers = {f"x.{e}.w": header(4) for e in range(2)}
    assert learned(uneven, headers)[0] == "x.0.w, x.1.w => s"


def test_a_family_in_another_order_is_not_taken_for_a_stack():
    names = [f"x.{e}.w" for e in range(12)]
    lines = learned(
        lambda w: {"s": mx.stack([w[n] for n in sorted(names)])}, {n: header(2, 3) for n in names}
    )
    assert not lines[0].startswith("x.{e}.w [a b] <-> s")


def test_a_tensor_made_of_nothing_is_refused_by_name():
    with pytest.raises(UnsupportedError, match=r"makes b of no tensor"):
        learned(lambda w: {"a": w["a"], "b": mx.zeros((3,))}, {"a": header(2)})


@st.composite
def movements(draw):
    """Draw a shape and a few movements of it; every one is a function of an array."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    steps, now = [], shape
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["turn", "merge", "divide", "swap parts", "drop"]))
        axis = draw(st.integers(0, len(now) - 1))
        if kind == "turn":
            order = draw(st.permutations(range(len(now))))
            steps.append(lambda a, order=tuple(order): a.transpose(order))
            now = tuple(now[i] for i in order)
        elif kind == "merge" and axis + 1 < len(now):
            now = (*now[:axis], now[axis] * now[axis + 1], *now[axis + 2 :])
            steps.append(lambda a, now=now: a.reshape(now))
        elif kind == "divide":
            by = draw(st.sampled_from([d for d in range(1, now[axis] + 1) if now[axis] % d == 0]))
            now = (*now[:axis], by, now[axis] // by, *now[axis + 1 :])
            steps.append(lambda a, now=now: a.reshape(now))
        elif kind == "swap parts" and now[axis] > 1:
            cut = draw(st.integers(1, now[axis] - 1))

            def swap(a, cut=cut, axis=axis):
                one, other = mx.split(a, [cut], axis=axis)
                return mx.concatenate([other, one], axis=axis)

            steps.append(swap)
        elif kind == "drop":
            step = draw(st.integers(1, 2))
            start = draw(st.integers(0, now[axis] - 1))
            index = (slice(None),) * axis + (slice(start, None, step),)
            steps.append(lambda a, index=index: a[index])
            now = (*now[:axis], -(-(now[axis] - start) // step), *now[axis + 1 :])
    return shape, steps


@given(movements())
def test_pieces_say_where_every_element_comes_from(drawn):
    shape, steps = drawn

    def moved(array):
        for step in steps:
            array = step(array)
        return array

    trace = record(lambda w: {"b": moved(w["a"])}, {"a": Header("I32", shape)})
    form = normal_forms(trace)["b"]
    if form is None:  # what fits no boxes is left to programs
        return
    positions = np.array(moved(mx.arange(int(np.prod(shape))).reshape(shape)))
    assert form.shape == positions.shape
    found = np.full(positions.size, -1)
    for piece in form.pieces:
        sizes = [factor.size for factor in piece.factors]
        for index in np.ndindex(*sizes):
            at = piece.at + sum(i * f.there for i, f in zip(index, piece.factors, strict=True))
            here = piece.start + sum(i * f.here for i, f in zip(index, piece.factors, strict=True))
            assert found[at] == -1
            found[at] = here
    assert found.tolist() == positions.reshape(-1).tolist()


@given(movements())
def test_whatever_is_moved_has_a_rule_that_is_proved(drawn):
    shape, steps = drawn

    def moved(w):
        array = w["a"]
        for step in steps:
            array = step(array)
        return {"b": array}

    assert learned(moved, {"a": Header("I32", shape)})[0].startswith("a")
