"""A program gives the bits of the function that was traced, and prints as what it is."""

from __future__ import annotations

from itertools import product

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weighbridge.converters.checkpoints.base import Header
from weighbridge.converters.common.dtypes import CODE
from weighbridge.converters.maps import Dropped, WeightMap, apply
from weighbridge.converters.maps.execution.exchange import to_mlx, to_numpy
from weighbridge.converters.maps.programs.primitives import PRIMITIVES
from weighbridge.converters.maps.programs.programs import (
    Program,
    Step,
    constant_steps,
    results,
    run,
    step_of,
)
from weighbridge.converters.values import Dense, LowRank
from weighbridge.errors import BadInputError, MapSyntaxError, MismatchError, UnsupportedError


def traced(function, *arrays):
    """Return the program of FUNCTION, as mx.export_function reports it at these arrays."""
    records = []
    mx.export_function(records.append, lambda *a: tuple(function(*a)), *arrays)
    by_type = {kind: [r for r in records if r["type"] == kind] for kind in
               ("inputs", "outputs", "constants", "primitive")}  # fmt: skip
    names = {i[0]: f"#{at}" for at, i in enumerate(by_type["inputs"][0]["inputs"])}
    steps = []
    for at, (key, value) in enumerate(c for r in by_type["constants"] for c in r["constants"]):
        names[key] = f"c{at}"
        steps += constant_steps(f"c{at}", value)
    outputs = {o[0]: f"${at}" for at, o in enumerate(by_type["outputs"][0]["outputs"])}
    read = {i[0] for r in by_type["primitive"] for i in r["inputs"]} | outputs.keys()
    for record in by_type["primitive"]:
        for output in record["outputs"]:
            if output[0] in read:
                names[output[0]] = outputs.get(output[0], f"t{len(names)}")
        steps.append(step_of(record, names))
    return Program(tuple(steps))


def dequantized_fp8(weight, scale):
    """The block scaling of DeepSeek-V3 (mlx-lm deepseek_v3.py, `dequant`), at blocks of 2."""
    block = 2
    m, n = weight.shape
    pad_bottom, pad_side = -m % block, -n % block
    weight = mx.take(TABLE, weight.astype(mx.uint32))
    weight = mx.pad(weight, ((0, pad_bottom), (0, pad_side)))
    weight = weight.reshape((m + pad_bottom) // block, block, (n + pad_side) // block, block)
    weight = (weight * scale[:, None, :, None]).reshape(m + pad_bottom, n + pad_side)
    return [weight[:m, :n].astype(mx.bfloat16)]


TABLE = mx.from_fp8(mx.arange(256).astype(mx.uint8), dtype=mx.float32)
mx.eval(TABLE)

F32, BF16, I32, U8, U32 = mx.float32, mx.bfloat16, mx.int32, mx.uint8, mx.uint32
FUNCTIONS = {
    "fp8": (dequantized_fp8, [((5, 3), U8), ((3, 2), F32)]),
    "norm plus one": (lambda x: [x + 1, x * 0.5 - 3], [((5,), BF16)]),
    "baichuan": (lambda x: [x / mx.linalg.norm(x, axis=-1, keepdims=True)], [((4, 6), F32)]),
    "axes": (lambda x: [x.T, x[:, None], x.reshape(-1, 2), x.flatten(), mx.squeeze(x[:1]),
                        mx.unflatten(x, 1, (2, 3)), mx.swapaxes(x, 0, 1)], [((4, 6), BF16)]),
    "slices": (lambda x: [x[::2, -3:-1], x[::-1], x[:, 4:1:-1], x[2], x[1, 2]], [((4, 6), F32)]),
    "parts": (lambda x: [*mx.split(x, [1, 3], 1), mx.split(x, 2, 0)[1],
                         mx.concatenate([x, x], -1), mx.stack([x, x])], [((4, 6), F32)]),
    "indices": (lambda x: [mx.take(x, mx.array([2, 0, 2]), axis=0), x[mx.array([0, 1]), mx.array([2, 3])],
                           mx.take(x, mx.array([[5, 1]]), axis=1),
                           mx.take_along_axis(x, mx.zeros((4, 1), mx.int32), 1)], [((4, 6), F32)]),
    "write": (lambda x: [assigned(x)], [((4, 6), F32)]),
    "spread": (lambda x: [mx.pad(x, ((1, 2), (0, 3)), constant_values=7), mx.repeat(x, 2, 0),
                          mx.tile(x, (2, 1)), mx.roll(x, 1, 0)], [((4, 6), F32)]),
    "unary": (lambda x: [mx.exp(x), mx.log(x), mx.log2(x), mx.log10(x), mx.sqrt(x), mx.rsqrt(x),
                         mx.square(x), -x, mx.sigmoid(x), mx.tanh(x), mx.abs(x), mx.floor(x),
                         mx.round(x, 2), mx.softmax(x, -1), mx.sign(x), mx.erf(x)], [((4, 6), F32)]),
    "reduced": (lambda x: [x.sum(1), x.max(), x.min(0), x.mean(-1), mx.cumsum(x, 0), x.prod(1),
                           mx.argsort(x, -1), mx.sort(x, 0), x.astype(mx.uint8).sum(0)], [((4, 6), F32)]),
    "binary": (lambda x, y: [x + y, x - y, x * y, x / y, x**y, mx.maximum(x, y), mx.clip(x, 0, 1),
                             mx.where(x > y, x, y), x // y, x % y, mx.logaddexp(x, y), x @ y.T,
                             mx.isnan(x), mx.isinf(x), mx.array_equal(x, y, equal_nan=True)],
               [((4, 6), F32), ((4, 6), F32)]),
    "integers": (lambda x: [x // 3, x & 15, x | 1, x ^ 2, x >> 4, x << 2, x.view(mx.uint32),
                            x.astype(mx.float32), mx.tril(x)], [((4, 8), U8)]),
    "mxfp4": (lambda x: [x.view(mx.uint32).flatten(-2)[:, ::2]], [((3, 4, 5, 16), U8)]),
    "quantize": (lambda x: mx.quantize(x, group_size=32, bits=4), [((4, 64), BF16)]),
    "dequantize": (lambda w, s, b: [mx.dequantize(w, s, b, group_size=32, bits=4)],
                   [((4, 8), U32), ((4, 2), F32), ((4, 2), F32)]),
    "counted": (lambda x: [mx.arange(6).astype(mx.float32) * x, mx.zeros((2, 3)) + x[:2, :3]],
                [((4, 6), F32)]),
    "vector": (lambda x: [x * mx.array([1.5, -0.0, 2.0, 1e-7, mx.inf, 3.0])], [((4, 6), F32)]),
}  # fmt: skip


def assigned(x):
    changed = mx.array(x)
    changed[1:3, 2] = 0
    return changed


def noise(shape, dtype, seed=0):
    """Return random bits, NaNs of all kinds among them."""
    dtype = np.dtype(getattr(ml_dtypes, str(dtype).split(".")[-1], str(dtype).split(".")[-1]))
    count = int(np.prod(shape))
    return np.frombuffer(np.random.default_rng(seed).bytes(count * dtype.itemsize), dtype).reshape(
        shape
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_program_gives_the_bits_of_the_function_that_was_traced(name):
    function, inputs = FUNCTIONS[name]
    arrays = [noise(shape, dtype, at) for at, (shape, dtype) in enumerate(inputs)]
    program = traced(function, *(mx.zeros(shape, dtype) for shape, dtype in inputs))
    program = Program.parse(str(program))
    expected = [to_numpy(array) for array in function(*map(to_mlx, arrays))]
    made = run(program, arrays)
    headers = tuple(Header(CODE[a.dtype], a.shape) for a in arrays)
    assert [(CODE[a.dtype], a.shape) for a in made] == list(results(program, headers))
    assert [(a.dtype, a.shape) for a in made] == [(a.dtype, a.shape) for a in expected]
    assert [a.tobytes() for a in made] == [a.tobytes() for a in expected]
    assert program.flaw(len(arrays), len(expected)) is None


def test_a_reshape_is_written_with_the_length_that_was_left_to_it():
    program = traced(lambda x: [x.reshape(2, -1)], mx.zeros((4, 3)))
    assert "Reshape(#0) [2 6]" in str(program)


def test_what_mlx_cannot_export_has_an_operation_of_its_own():
    codes = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn)
    [made] = run(Program.parse("a = Contiguous(#0); $0 = FromFP8(a) bfloat16"), [codes])
    expected = to_numpy(mx.from_fp8(mx.arange(256).astype(mx.uint8)))
    assert made.tobytes() == expected.tobytes()
    x = noise((4, 64), BF16)
    quantized = [to_numpy(a) for a in mx.quantize(to_mlx(x), group_size=32, bits=4)]
    [made] = run(Program.parse("$0 = Dequantize(#0, #1, #2) 32 4 0 bfloat16"), quantized)
    expected = mx.dequantize(*map(to_mlx, quantized), group_size=32, bits=4)
    assert made.tobytes() == to_numpy(expected).tobytes()


@pytest.mark.parametrize("dtype", sorted({*(d.name for d in CODE)} - {"complex64"}))
def test_arrays_go_to_mlx_and_back_bit_for_bit(dtype):
    for shape in [(), (0, 3), (3, 5)]:
        array = noise(shape, f".{dtype}")
        back = to_numpy(to_mlx(array))
        assert (back.tobytes(), back.shape) == (array.tobytes(), shape)


NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True)
INTEGERS = st.integers(-(2**63), 2**64 - 1)
NUMBERS = INTEGERS | st.floats(allow_nan=False, allow_infinity=False)
ARGUMENTS = {
    "i": INTEGERS,
    "n": NUMBERS,
    "b": st.booleans(),
    "d": st.sampled_from(["float32", "bfloat16", "uint8"]),
    "l": st.lists(INTEGERS, max_size=3).map(tuple),
    "v": st.lists(NUMBERS, max_size=3).map(tuple),
}


@st.composite
def programs(draw):
    """Draw a program from one source to one target that may not run, but may be written."""
    steps, known = [], ["#0"]
    for at in range(draw(st.integers(1, 4))):
        operation = draw(st.sampled_from(sorted(PRIMITIVES)))
        wanted, kinds, _ = PRIMITIVES[operation]
        operands = draw(st.lists(st.sampled_from(known), min_size=1 if wanted is None else wanted,
                                 max_size=3 if wanted is None else wanted))  # fmt: skip
        made = (f"{draw(NAMES)}{at}", *draw(st.sampled_from([(), ("_",)])))
        arguments = tuple(draw(ARGUMENTS[kind]) for kind in kinds)
        steps.append(Step(made, operation, tuple(operands), arguments))
        known.append(made[0])
    steps.append(Step(("$0",), "Concatenate", ("#0", known[-1]), (0,)))
    return Program(tuple(steps))


@given(program=programs(), names=st.lists(NAMES, min_size=1, max_size=2, unique=True))
@settings(max_examples=50)
def test_a_printed_program_parses_to_itself(program, names):
    assert Program.parse(str(program)) == program
    assert str(Program.parse(str(program))) == str(program)
    text = f"? {{m}}.a => {{m}}.b\n    by {program}\n    where m = {' | '.join([*names, 'x_y'])}"
    for table in (WeightMap.parse(text), WeightMap.parse(text).inverse()):
        assert WeightMap.parse(str(table)) == table
        assert table.inverse().inverse() == table


FLAWS = [
    ("$0 = Ad(#0)", "no operation `Ad`; nearest: "),
    ("$0 = Add(#0)", "Add takes 2 operands, not 1"),
    ("$0 = AsType(#0) float33", "AsType takes a dtype, not 0 arguments"),
    ("$0 = Reshape(#0) 3", "Reshape takes integers in brackets where it has 3"),
    ("$0 = Reshape(#0) [1.5]", "Reshape takes integers in brackets where it has [1.5]"),
    ("$0 = Arange() 0 1e999 1 float32", "Arange takes a number where it has inf"),
    ("$0 = Reshape(#0) [x]", "expected a number or `]`, found `x`"),
    ("$0 = Square(a)", "`$0 = Square(a)`: a is not known"),
    ("a = Square(#0)", "the program does not make $0"),
    ("$0 = Square(#0); $1 = Square(#0)", "the program makes $1, which the rule lacks"),
    ("$0 = Square(#0); $0 = Square(#0)", "$0 is made twice"),
    ("$0 = Arange() 0 1 1 int32", "the program does not use #0"),
    ("$0 = Square #0", "expected `(`, found the end of the rule"),  # a comment now
    ("$0 = Square(#0 1)", "expected a name, `#0` or `$0`, found the end of the rule"),  # and here
    ("a = Copy(#0); $0 = Square(a b)", "expected `,` or `)`, found `b`"),
    ("$0 = Concatenate() 0", "Concatenate takes one operand or more"),
]


@pytest.mark.parametrize(("program", "message"), FLAWS)
def test_a_program_that_does_not_hold_together_is_a_syntax_error(program, message):
    with pytest.raises(MapSyntaxError) as caught:
        WeightMap.parse(f"a => b by {program}", "my.wmap")
    assert message in str(caught.value)
    assert str(caught.value).startswith("my.wmap:1:")


RULES = [
    ("a [x] => b by $0 = Square(#0)", "a: a name of a program takes no axes"),
    ("a => b + 1 by $0 = Square(#0)", "takes no axes and no change of value"),
    ("a => b.{e} by $0 = Square(#0)", "{e} is not in every name"),
    ("a.{e} <= b by $0 = Square(#0)", "{e} is not in every name"),
    ("a.{e}.{d} => b by $0 = Square(#0)", "a program runs along one index, not d, e"),
    ("a.{e}, b => c by $0 = Add(#0, #1)", "b has no {e}, which the program runs along"),
    ("a => b", "expected `by` and a program"),
    ("a, a => b by $0 = Add(#0, #1)", "a stands twice on one side"),
]


@pytest.mark.parametrize(("text", "message"), RULES)
def test_a_rule_with_a_program_pairs_whole_tensors(text, message):
    with pytest.raises(MapSyntaxError) as caught:
        WeightMap.parse(text)
    assert message in str(caught.value)


SCALED = WeightMap.parse("""
{m}.weight, {m}.scale => {m}.weight
    by a = FromFP8(#0) bfloat16;  # not (#1), yet
       b = ExpandDims(#1) [1];
       c = Broadcast(b) [2 3];
       d = AsType(c) bfloat16;
       $0 = Multiply(a, d)
    where m = x | y
norm <-> same
""")
HEADERS = {
    **{f"{m}.weight": Header("F8_E4M3", (2, 3)) for m in "xy"},
    **{f"{m}.scale": Header("F32", (2,)) for m in "xy"},
    "norm": Header("F32", (4,)),
}


def test_a_program_makes_the_targets_of_each_instance():
    plan = SCALED.bind(HEADERS)
    assert plan.layout == {
        "x.weight": Header("BF16", (2, 3)),
        "y.weight": Header("BF16", (2, 3)),
        "norm": Header("F32", (4,)),
    }
    assert [(step.copies, step.exact) for step in plan.steps] == [(False, False)] * 2 + [
        (True,) * 2
    ]
    codes = np.arange(6).reshape(2, 3).astype(ml_dtypes.float8_e4m3fn)
    values = {"y.weight": Dense(codes), "y.scale": Dense(np.array([2, -0.5], np.float32))}
    made = apply(plan, values)["y.weight"].array
    assert made.astype(float).tolist() == [[0, 2, 4], [-1.5, -2, -2.5]]
    assert plan.lines()[0] == (
        "{m}.weight, {m}.scale => {m}.weight  # 4 to 2 tensors, 24 bytes, computed by a program"
        " (the way back needs the original checkpoint), not bit-exact"
    )


def test_the_way_back_says_what_only_the_original_has():
    there = SCALED.bind(HEADERS)
    back = SCALED.inverse().bind(there.layout, target=HEADERS)
    assert back.layout == {"norm": HEADERS["norm"]}
    assert back.dropped == (
        Dropped("x.weight", "computed"),
        Dropped("x.weight", "needed"),
        Dropped("x.scale", "needed"),
        Dropped("y.weight", "computed"),
        Dropped("y.weight", "needed"),
        Dropped("y.scale", "needed"),
    )
    assert "x.scale <- to be taken from the original checkpoint" in back.lines()
    made = "x.weight -> dropped; a program made it, so the way back needs the original checkpoint"
    assert made in back.lines()


STACKED = """
h.{n}.{e}.weight, h.{n}.{e}.scale => h.{n}.weight, h.{n}.ones
    by $0 = Multiply(#0, #1);
       $1 = Constant() uint8 [1] [1]"""


def test_targets_come_in_their_order_whichever_is_made_first():
    program = Program.parse("$1 = Square(#0); $0 = Negative(#0)")
    first, second = run(program, [np.float32([3])])
    assert (first.item(), second.item()) == (-3, 9)


def test_a_program_runs_once_for_each_index_and_its_results_are_stacked():
    table = WeightMap.parse(STACKED)
    arrays = {
        f"h.{n}.{e}.{part}": noise((2, 3), "float32", seed)
        for seed, (n, e, part) in enumerate(product("01", range(12), ("weight", "scale")))
    }
    shuffled = {name: Header("F32", (2, 3)) for name in reversed(arrays)}
    plan = table.bind(shuffled)
    assert plan.layout["h.0.weight"] == Header("F32", (12, 2, 3))
    assert plan.layout["h.1.ones"] == Header("U8", (12, 1))
    made = apply(plan, {name: Dense(array) for name, array in arrays.items()})
    each = [to_mlx(arrays[f"h.1.{e}.weight"]) * to_mlx(arrays[f"h.1.{e}.scale"]) for e in range(12)]
    assert made["h.1.weight"].array.tobytes() == to_numpy(mx.stack(each)).tobytes()
    assert made["h.0.ones"].array.tolist() == [[1]] * 12
    back = table.inverse().bind(plan.layout)
    assert Dropped("h.0.{e}.scale", "needed") in back.dropped


def test_a_family_of_a_program_is_whole_and_alike():
    headers = {f"h.0.{e}.{p}": Header("F32", (2,)) for e in range(3) for p in ("weight", "scale")}
    table = WeightMap.parse(STACKED)
    with pytest.raises(MismatchError, match=r"h\.0\.1\.scale is missing"):
        table.bind({name: header for name, header in headers.items() if name != "h.0.1.scale"})
    with pytest.raises(MismatchError, match=r"h\.0\.2\.scale is F32\[3\], but h\.0\.0\.scale is"):
        table.bind(headers | {"h.0.2.scale": Header("F32", (3,))})


def test_what_a_program_lacks_or_cannot_run_is_named():
    with pytest.raises(MismatchError) as caught:
        SCALED.bind({name: header for name, header in HEADERS.items() if name != "x.scale"})
    assert list(caught.value.problems) == [
        "x.scale is missing (rule: {m}.weight, {m}.scale => {m}.weight)"
    ]
    with pytest.raises(MismatchError) as caught:
        SCALED.bind(HEADERS | {"y.weight": Header("F8_E4M3", (2, 4))})
    [problem] = caught.value.problems
    assert problem.startswith("y.weight: `$0 = Multiply(a, d)` cannot run: ")
    with pytest.raises(MismatchError, match=r"y\.weight is missing \(m = x \| y\)"):
        SCALED.inverse().bind({"x.weight": Header("BF16", (2, 3)), "norm": HEADERS["norm"]})
    with pytest.raises(BadInputError, match=r"`a, b = Square\(#0\)` cannot run: "):
        run(Program.parse("a, b = Square(#0); $0 = Copy(a)"), [np.zeros(2, np.float32)])


def test_updates_are_refused_by_name():
    table = WeightMap.parse("x.weight => y.weight by $0 = Square(#0)")
    headers = {"x.weight": Header("F32", (4, 6))}
    update = LowRank(np.zeros((2, 6), np.float32), np.zeros((4, 2), np.float32))
    with pytest.raises(UnsupportedError, match=r"on x\.weight: .*not low-rank updates"):
        apply(table.bind(headers), {"x.weight": update})
    with pytest.raises(
        MismatchError, match=r"x\.weight has an update, but `x\.weight => y\.weight`"
    ):
        table.bind(headers, updates={"x.weight": update})


def test_a_long_rule_is_quoted_in_part():
    names = ", ".join(f"experts.{at}.weight" for at in range(300))
    joined = ", ".join(f"#{at}" for at in range(300))
    table = WeightMap.parse(f"{names} => experts by $0 = Concatenate({joined}) 0")
    with pytest.raises(MismatchError) as caught:
        table.bind({"experts.0.weight": Header("F32", (2,))})
    assert len(caught.value.problems) == 299
    assert max(map(len, caught.value.problems)) < 1000
