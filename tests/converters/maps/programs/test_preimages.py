"""A program that computes with constants is undone to the bit, wherever any number leads there."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weighbridge.converters.checkpoints.base import Header
from weighbridge.converters.common.dtypes import dtype_of
from weighbridge.converters.maps import WeightMap, apply
from weighbridge.converters.maps.programs.preimages import (
    leads_as_near,
    preimage,
    source_header,
    way,
)
from weighbridge.converters.maps.programs.programs import Program, run
from weighbridge.converters.values import Dense
from weighbridge.errors import MismatchError

DTYPES = ("float32", "float16", "bfloat16")
AMOUNTS = st.floats(0.01, 30) | st.floats(-30, -0.01)


@st.composite
def programs(draw, most):
    """Draw a program of up to MOST operations by constants, and its dtype."""
    dtype, at, steps = draw(st.sampled_from(DTYPES)), "#0", []
    for turn in range(draw(st.integers(1, most))):
        amount = float(np.array(draw(AMOUNTS)).astype(dtype_of(dtype)))
        steps.append(f"c{turn} = Constant() {dtype} [] [{amount!r}]")
        operation = draw(st.sampled_from(["Multiply", "Divide", "Add", "Subtract"]))
        pair = (
            [at, f"c{turn}"] if draw(st.booleans()) or operation == "Divide" else [f"c{turn}", at]
        )
        at = f"x{turn}"
        steps.append(f"{at} = {operation}({', '.join(pair)})")
    steps[-1] = f"$0{steps[-1].removeprefix(at)}"
    return Program.parse("; ".join(steps)), dtype_of(dtype)


def random(shape, dtype, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def bits(array):
    return array.tobytes()


@settings(max_examples=60, deadline=None)
@given(programs(2), st.integers(0, 99))
def test_what_a_number_leads_to_comes_back_to_a_number_that_leads_there(case, seed):
    program, dtype = case
    [made] = run(program, [random((13, 7), dtype, seed)])
    found = preimage(program, made, dtype)
    assert found.missed == 0
    assert bits(run(program, [found.array])[0]) == bits(made)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@settings(max_examples=25, deadline=None)
@given(amount=AMOUNTS, operation=st.sampled_from(["Multiply", "Divide", "Add", "Subtract"]))
def test_a_number_is_missed_only_if_none_of_its_dtype_leads_there(dtype, amount, operation):
    """The oracle runs the program on every finite number that the dtype has."""
    kind = dtype_of(dtype)
    constant = float(np.array(amount).astype(kind))
    program = Program.parse(f"c = Constant() {dtype} [] [{constant!r}]; $0 = {operation}(#0, c)")
    every = np.arange(1 << 16, dtype=np.uint16).view(kind)
    with np.errstate(invalid="ignore"):  # of NaN that signal
        [reached] = run(program, [every[np.isfinite(every)]])
    wanted = random((999,), kind)
    found = preimage(program, wanted, kind)
    possible = np.isin(wanted.view(np.uint16), reached.view(np.uint16))
    [made] = run(program, [found.array])
    assert np.array_equal(made.view(np.uint16) == wanted.view(np.uint16), possible)
    assert found.missed == np.count_nonzero(~possible)


@pytest.mark.parametrize("dtype", DTYPES)
def test_where_none_leads_there_the_nearest_is_taken(dtype):
    kind = dtype_of(dtype)
    program = Program.parse(f"c = Constant() {dtype} [] [3.0]; $0 = Multiply(#0, c)")
    wanted = random((5, 77), kind)
    found = preimage(program, wanted, kind)
    assert 0 < found.missed < wanted.size
    gap = abs(run(program, [found.array])[0].astype(float) - wanted.astype(float))
    for far in (np.inf, -np.inf):
        beside = np.nextafter(found.array, np.array(far, kind))
        other = abs(run(program, [beside])[0].astype(float) - wanted.astype(float))
        assert np.all(gap <= other)
    assert leads_as_near(program, found.array, wanted, back=True)
    assert not leads_as_near(program, found.array, wanted, back=False)
    assert not leads_as_near(program, np.nextafter(found.array, kind.type(9)), wanted, back=True)


def test_what_is_too_large_to_come_back_stays_finite():
    program = Program.parse("c = Constant() float16 [] [0.25]; $0 = Multiply(#0, c)")
    found = preimage(program, np.array([60000, -60000, -0.0], np.float16), np.dtype(np.float16))
    assert np.isfinite(found.array).all()
    assert np.signbit(found.array).tolist() == [False, True, True]
    assert found.missed == 2


VECTOR = """weighbridge map 1
{n}.in.weight => {n}.in.weight
    by a = Constant() float32 [3] [1.1 0.7 1.3];
       b = ExpandDims(a) [1];
       c = Broadcast(b) [3 5];
       d = Multiply(c, #0);
       $0 = Transpose(d) [1 0]
{n}.out.weight <-> same
"""


def test_a_map_goes_home_through_a_vector_and_a_transposition():
    table = WeightMap.parse(VECTOR)
    source = {"0.in.weight": random((3, 5), np.float32), "0.out.weight": random((2,), np.float32)}
    plan = table.bind({name: Header("F32", a.shape) for name, a in source.items()})
    made = apply(plan, {name: Dense(a) for name, a in source.items()})
    back = table.inverse().bind(plan.layout)
    assert {name: str(header) for name, header in back.layout.items()} == {
        "0.in.weight": "F32[3, 5]",
        "0.out.weight": "F32[2]",
    }
    again = apply(plan, apply(back, made))
    assert {k: bits(v.array) for k, v in again.items()} == {
        k: bits(v.array) for k, v in made.items()
    }


def test_the_source_has_the_dtype_of_its_target():
    """So training that was done in float32 is not rounded on the way home."""
    program = Program.parse("c = Constant() float32 [2] [3.0 5.0]; $0 = Multiply(#0, c)")
    assert source_header(program, Header("F32", (3, 2))) == Header("F32", (3, 2))
    assert source_header(program, Header("BF16", (3, 2))) is None
    narrow = Program.parse("a = AsType(#0) float32; b = Negative(a); $0 = AsType(b) bfloat16")
    assert source_header(narrow, Header("BF16", (3, 2))) == Header("BF16", (3, 2))


@pytest.mark.parametrize(
    "text",
    [
        "$0 = Square(#0)",
        "a = Square(#0); $0 = Add(a, #0)",
        "$0 = Multiply(#0, #0)",
        "$0 = Multiply(#0, #1)",
        "a = Constant() float32 [2] [1.0 0.0]; $0 = Multiply(#0, a)",
        "a = Broadcast(#0) [3 2]; b = Constant() float32 [] [2.0]; $0 = Multiply(a, b)",
        "a = Reshape(#0) [3 2]; b = Constant() float32 [] [2.0]; $0 = Multiply(a, b)",
        "a = FromFP8(#0) float32; b = Constant() float32 [] [2.0]; $0 = Multiply(a, b)",
        "a = AsType(#0) int32; $0 = AsType(a) float32",
    ],
)
def test_what_loses_numbers_or_shapes_is_not_undone(text):
    assert way(Program.parse(text)) is None


def test_a_map_with_such_a_program_still_has_no_way_back():
    table = WeightMap.parse("weighbridge map 1\nw => w\n    by $0 = Square(#0)\n")
    plan = table.inverse().bind({"w": Header("F32", (2, 3))})
    assert [(item.name, item.policy) for item in plan.dropped] == [
        ("w", "computed"),
        ("w", "needed"),
    ]


def test_integers_are_not_undone():
    table = WeightMap.parse(VECTOR)
    with pytest.raises(MismatchError, match="is not what its program makes"):
        table.inverse().bind(
            {"0.in.weight": Header("I32", (5, 3)), "0.out.weight": Header("F32", (2,))}
        )
