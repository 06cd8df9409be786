"""Pass 1: what fits is paired, and what does not is refused with all of its reasons."""

from __future__ import annotations

import numpy as np
import pytest

from weighbridge.converters.checkpoints.base import Header
from weighbridge.converters.maps import Dropped, WeightMap
from weighbridge.converters.values import LowRank
from weighbridge.errors import MismatchError

MOE = """
where n = layers
embed.weight                          <-> model.embed.weight
h.{n}.experts.{e}.w1.weight [o i]     <-> h.{n}.switch.weight [e o i]
    where e = experts
h.{n}.qkv.weight [(q + k) d]          <-> h.{n}.q.weight [q d], h.{n}.k.weight [k d]
    where q = heads * dim, k = dim
? pooler.{p}                          <-> same
lm_head.weight                        == embed.weight
rope.inv_freq                         -> recomputed
vision.{**}                           -> original
"""
CONFIG = {"layers": 2, "experts": 3, "heads": 4, "dim": 2}


def moe(**changes):
    """Return headers that fit MOE, with CHANGES made: a new header, or None to take one away."""
    headers = {"embed.weight": Header("BF16", (7, 5)), "rope.inv_freq": Header("F32", (3,))}
    for n in range(2):
        headers[f"h.{n}.qkv.weight"] = Header("BF16", (10, 5))
        for e in range(3):
            headers[f"h.{n}.experts.{e}.w1.weight"] = Header("BF16", (4, 5))
    headers |= {name.replace("__", "."): header for name, header in changes.items()}
    return {name: header for name, header in headers.items() if header is not None}


F32 = Header("F32", (4, 5))
# what is changed, config, every line of the report
PROBLEMS = [
    ({"embed__weight": None}, {}, [
        "embed.weight is missing: no tensor has such a name"]),
    ({"embed__weight": None, "embd__weight": F32}, {}, [
        "embd.weight F32[4, 5] is in no rule; nearest: embed.weight",
        "embed.weight is missing: no tensor has such a name; nearest: embd.weight"]),
    ({"h__1__experts__1__w1__weight": None}, {}, [
        "h.1.experts.1.w1.weight is missing (rule:"]),
    ({"h__1__experts__2__w1__weight": None}, {}, [
        "h.1.experts.2.w1.weight is missing (rule:"]),
    ({"h__1__qkv__weight": None}, {}, [
        "h.1.qkv.weight is missing (n = 2)"]),
    ({}, {"layers": 1}, [
        "h.1.experts.{e}.w1.weight is unexpected (n = 1)", "h.1.qkv.weight is unexpected (n = 1)"]),
    ({"h__0__experts__0__w1__weight": F32}, {}, [
        "h.0.experts.1.w1.weight is BF16[4, 5], but h.0.experts.0.w1.weight is F32[4, 5]; tensors",
        "h.0.experts.2.w1.weight is BF16[4, 5], but h.0.experts.0.w1.weight is F32[4, 5]; tensors"]),
    ({"h__0__experts__2__w1__weight": Header("BF16", (4, 6))}, {}, [
        "h.0.experts.2.w1.weight is BF16[4, 6], but h.0.experts.0.w1.weight is BF16[4, 5]; tensors"]),
    ({"h__0__qkv__weight": Header("BF16", (11, 5))}, {}, [
        "h.0.qkv.weight BF16[11, 5]: axis (q + k) is 11, expected 10 (q = 8, k = 2)"]),
    ({"h__0__qkv__weight": Header("BF16", (10,))}, {}, [
        "h.0.qkv.weight BF16[10] has not the axes [(q + k) d]"]),
    ({"h__experts__weight": F32, "pooler__weight": F32, "pooler__x__y": F32}, {}, [
        "h.experts.weight F32[4, 5] is in no rule; nearest: h.{n}.experts.{e}.w1.weight",
        "pooler.x.y F32[4, 5] is in no rule; nearest: pooler.{p}"]),
    ({}, {"dim": "two"}, [
        "h.0.qkv.weight: size k is unknown: dim is 'two' in the config, not a number",
        "h.0.qkv.weight: size q is unknown: dim is 'two' in the config, not a number",
        "h.1.qkv.weight: size k is unknown: dim is 'two' in the config, not a number",
        "h.1.qkv.weight: size q is unknown: dim is 'two' in the config, not a number"]),
    ({"lm_head__weight": F32}, {}, [
        "lm_head.weight is tied to embed.weight, but they are F32[4, 5] and BF16[7, 5]"]),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "config", "lines"), PROBLEMS)
def test_every_problem_is_named(changes, config, lines):
    with pytest.raises(MismatchError) as caught:
        WeightMap.parse(MOE).bind(moe(**changes), config=CONFIG | config)
    problems = caught.value.problems
    assert [p[: len(line)] for p, line in zip(problems, lines, strict=True)] == lines


def test_the_one_name_of_a_tied_pair_that_is_here_stands_for_both():
    here = moe(lm_head__weight=Header("BF16", (7, 5)), embed__weight=None)
    plan = WeightMap.parse(MOE).bind(here, config=CONFIG)
    assert plan.layout["model.embed.weight"] == Header("BF16", (7, 5))
    assert [step.source_names for step in plan.steps if "lm_head.weight" in step.source_names] == [
        ("lm_head.weight",)
    ]
    table = WeightMap.parse("a.w <-> c.w\na.x == a.w\na.y == a.w")
    assert table.bind({"a.x": F32, "a.y": F32}).dropped == (Dropped("a.y", "tied", "a.x"),)


def test_a_tied_name_whose_original_no_rule_reads_is_named():
    with pytest.raises(MismatchError) as caught:
        WeightMap.parse("b <-> c\na.x == a.w").bind({"b": F32, "a.x": F32})
    assert list(caught.value.problems) == ["a.x is tied to a.w, which is missing"]


def test_what_fits_is_laid_out_in_the_order_of_the_source():
    plan = WeightMap.parse(MOE).bind(moe(), config=CONFIG)
    assert plan.layout == {
        "model.embed.weight": Header("BF16", (7, 5)),
        "h.0.q.weight": Header("BF16", (8, 5)),
        "h.0.k.weight": Header("BF16", (2, 5)),
        "h.0.switch.weight": Header("BF16", (3, 4, 5)),
        "h.1.q.weight": Header("BF16", (8, 5)),
        "h.1.k.weight": Header("BF16", (2, 5)),
        "h.1.switch.weight": Header("BF16", (3, 4, 5)),
    }
    assert next(iter(plan.layout)) == "model.embed.weight"
    assert plan.dropped == (Dropped("rope.inv_freq", "recomputed"),)
    assert plan.sizes == {"q": 8, "k": 2}
    assert not plan.renames_only


def test_recorded_sizes_lead_the_way_without_a_config():
    table = WeightMap.parse("{n}.kv [(h (a + b)) c] <-> {n}.k [h a c], {n}.v [h b c]")
    right = {
        "0.k": Header("F32", (2, 3, 5)),
        "0.v": Header("F32", (2, 4, 5)),
        "1.k": Header("F32", (2, 6, 5)),
        "1.v": Header("F32", (2, 1, 5)),
    }
    plan = table.inverse().bind(right)
    assert plan.sizes == {"h": 2, "0.k:a": 3, "0.k:b": 4, "1.k:a": 6, "1.k:b": 1}
    assert table.bind(plan.layout, sizes=plan.sizes).layout == right
    with pytest.raises(MismatchError, match=r"0\.kv: size a is unknown: add `where a = ...`"):
        table.bind(plan.layout)


def test_config_and_recorded_sizes_must_agree():
    table = WeightMap.parse("x [(a + b)] <-> y [a], z [b] where a = width")
    with pytest.raises(MismatchError, match="size a is 2 by the config, 3 as recorded"):
        table.bind({"x": Header("F32", (5,))}, config={"width": 2}, sizes={"a": 3})


def test_an_absurd_index_is_refused_without_counting_to_it():
    names = [f"h.0.experts.{e}.w1.weight" for e in (0, 10**15)]
    table = WeightMap.parse("h.{n}.experts.{e}.w1.weight [o] <-> h.{n}.w [e o]")
    with pytest.raises(MismatchError) as caught:
        table.bind(dict.fromkeys(names, Header("F32", (2,))))
    assert "999999999999991 more are missing" in str(caught.value)


def test_a_name_of_two_rules_is_refused():
    table = WeightMap.parse("a.{x}.w <-> b.{x}.w\na.{y}.{z} <-> c.{y}.{z}")
    with pytest.raises(MismatchError, match=r"a\.q\.w is matched by 2 rules: a\.{x}\.w"):
        table.bind({"a.q.w": F32, "a.q.v": F32})


def test_a_target_of_two_rules_is_refused():
    with pytest.raises(MismatchError) as caught:
        WeightMap.parse("a <-> c\nb <-> c").bind({"a": F32, "b": F32})
    assert "c is made twice, the second time by `b <-> c`" in caught.value.problems


def test_a_name_that_could_not_come_back_is_refused():
    ambiguous = WeightMap.parse("{a}_{b}.w <-> {b}-{a}.w")
    with pytest.raises(MismatchError, match="could not come back"):
        ambiguous.bind({"x_y-z_t.w": F32})
    assert ambiguous.bind({"x_y.w": F32}).layout == {"y-x.w": F32}


def test_else_takes_what_is_left():
    table = WeightMap.parse("{m**}.conv.weight [o i w] <-> [o w i]\nelse {**} <-> {**}")
    headers = {"a.conv.weight": Header("F32", (2, 3, 4)), "a.conv.bias": Header("F32", (2,))}
    plan = table.bind(headers)
    assert plan.layout == headers | {"a.conv.weight": Header("F32", (2, 4, 3))}
    assert table.inverse().bind(plan.layout).layout == headers


def test_tensors_of_the_other_side_are_recognised():
    table = WeightMap.parse(MOE)
    there = table.bind(moe(), config=CONFIG).layout
    with pytest.raises(MismatchError, match="wrong direction: 7 of 7 tensors"):
        table.bind(there, config=CONFIG)
    with pytest.raises(MismatchError, match="wrong direction"):
        table.inverse().bind(moe(), config=CONFIG)
    assert table.inverse().bind(there, config=CONFIG).layout.keys() == moe().keys() - {
        "rope.inv_freq"
    }


def test_the_way_back_says_what_only_the_original_has():
    table = WeightMap.parse("a <-> b\nvision.{**} -> original\ngone -> recomputed").inverse()
    assert table.bind({"b": F32}).dropped == (Dropped("vision.{**}", "needed"),)
    target = {"a": F32, "vision.x": F32, "gone": F32}
    assert table.bind({"b": F32}, target=target).dropped == (Dropped("vision.x", "needed"),)
    there = table.inverse().bind(target)
    assert there.dropped == (Dropped("vision.x", "original"), Dropped("gone", "recomputed"))
    assert "vision.x -> dropped; the way back needs the original checkpoint" in there.lines()


# headers of the target, every line of the report
TARGETS = [
    ({"c.w": F32}, []),
    ({"c.w": Header("BF16", (4, 5))}, []),
    ({"c.w": Header("F32", (5, 4))},
     ["c.w has another shape than the target: expected [5, 4], found [4, 5]"]),
    ({"c.v": F32}, ["c.v F32[4, 5] is in the target, but no rule makes it",
                    "c.w F32[4, 5] is not in the target; nearest: c.v"]),
]  # fmt: skip


@pytest.mark.parametrize(("target", "lines"), TARGETS)
def test_a_target_is_compared_in_names_and_shapes(target, lines):
    table = WeightMap.parse("a.w <-> c.w")
    if not lines:
        assert table.bind({"a.w": F32}, target=target).layout == {"c.w": F32}
        return
    with pytest.raises(MismatchError) as caught:
        table.bind({"a.w": F32}, target=target)
    assert list(caught.value.problems) == lines


def update(rows, columns):
    return LowRank(np.zeros((2, columns), np.float32), np.zeros((rows, 2), np.float32))


UPDATES = [
    ({"a.v": update(4, 5)}, "a.v has an update, but no such tensor is here; nearest: a.w"),
    ({"a.w": update(5, 4)}, "a.w is F32[4, 5], but its update is for a weight [5, 4]"),
    ({"a.q": update(4, 5)}, "a.q is U8[4, 5], but its update is for a weight [4, 5]"),
    ({"a.t": update(4, 5)}, "a.t has an update, which would be lost: tied"),
]  # fmt: skip


@pytest.mark.parametrize(("updates", "problem"), UPDATES)
def test_updates_that_do_not_fit_are_named(updates, problem):
    headers = {"a.w": F32, "a.t": F32, "a.q": Header("U8", (4, 5))}
    table = WeightMap.parse("a.w <-> c.w\na.q <-> c.q\na.t == a.w")
    with pytest.raises(MismatchError) as caught:
        table.bind(headers, updates=updates)
    assert list(caught.value.problems) == [problem]
    assert table.bind(headers, updates={"a.w": update(4, 5)}).merged == ("a.w",)


CASTS = [
    ("a <-> b as bfloat16", "F32", "BF16", False),
    ("a <-> b as float32", "BF16", "F32", True),
    ("a as float32 <-> b as bfloat16", "F32", "BF16", False),
    ("a <-> b + 1", "F16", "F16", False),
]


@pytest.mark.parametrize(("text", "source", "target", "exact"), CASTS)
def test_a_step_knows_whether_it_is_bit_exact(text, source, target, exact):
    plan = WeightMap.parse(text).bind({"a": Header(source, (3,))})
    assert plan.layout == {"b": Header(target, (3,))}
    assert [step.exact for step in plan.steps] == [exact]
    assert plan.lines()[0].endswith("not bit-exact") is not exact


def test_changes_of_value_need_their_dtype():
    with pytest.raises(MismatchError, match="a is F16, expected float32"):
        WeightMap.parse("a as float32 <-> b").bind({"a": Header("F16", (3,))})
    with pytest.raises(MismatchError, match=r"a is I64; `\+ 1` needs floating-point numbers"):
        WeightMap.parse("a <-> b + 1").bind({"a": Header("I64", (3,))})
    with pytest.raises(MismatchError, match="c is 0, which has no way back"):
        WeightMap.parse("a <-> b * c where c = m").bind({"a": Header("F16", (3,))}, config={"m": 0})


BITS = [
    ("a [x y] bits uint8 <-> b [x y] bits uint32", Header("U8", (3, 6)),
     "b would have rows of 6 bytes, no whole number of uint32"),
    ("a bits uint8 <-> b bits uint32", Header("U8", ()), "a has no axis to count bytes in (rule: a"),
    ("a bits uint8 <-> b bits uint32", Header("I8", (4,)), "a is I8, expected uint8"),
    ("a [x (y z)] bits uint16 <-> b [x y z] bits uint8 where y = 3", Header("U16", (2, 4)),
     "a U16[2, 4]: axis (y z) is 8, which no size of z makes (y = 3)"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "header", "problem"), BITS)
def test_bits_that_make_no_whole_numbers_are_named(text, header, problem):
    with pytest.raises(MismatchError) as caught:
        WeightMap.parse(text).bind({"a": header})
    [found] = caught.value.problems
    assert found.startswith(problem)


COPIES = [
    ("x [a b] <-> y [a b]", True),
    ("x [a 1 b] <-> y [a b 1]", True),
    ("x [a b] <-> y [b a]", False),
    ("x [(q + k) b] <-> y [q b], z [k b]", True),
    ("x [b (q + k)] <-> y [b q], z [b k]", True),
    ("x [(q + k) b] <-> y [q b], z [b k]", False),
    ("x [e b] <-> y.{e} [b]", True),
    ("x [b e] <-> y.{e} [b]", False),
    ("x bits float32 <-> y bits uint16", True),
    ("x [a b] bits float32 <-> y [(a b)] bits uint8 where a = 6", True),
    ("x [(q + k) b] bits float32 <-> y [q b] bits uint8, z [k b] bits uint64", True),
    ("x [a b] bits float32 <-> y [b a] bits uint8", False),
]


@pytest.mark.parametrize(("text", "copied"), COPIES)
def test_a_step_knows_whether_it_copies_byte_ranges(text, copied):
    table = WeightMap.parse(text)
    rank = len(table.rules[0].left[0].axes or ())
    header = {"x": Header("F32", (6, 1, 5) if rank == 3 else (6, 6))}
    plan = table.bind(header, sizes={"q": 2})
    assert [step.copies for step in plan.steps] == [copied]
    back = table.inverse().bind(plan.layout)
    assert [step.copies for step in back.steps] == [copied]
