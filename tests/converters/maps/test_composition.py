"""A composed map does what the two do in turn, and prints as one map."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.converters.checkpoints.base import Header
from weighbridge.converters.common.dtypes import CODE
from weighbridge.converters.maps import WeightMap, apply
from weighbridge.converters.maps.notation.axes import Atom
from weighbridge.converters.maps.notation.names import Name
from weighbridge.converters.maps.notation.rules import Pairing, Term
from weighbridge.converters.values import Dense
from weighbridge.errors import UnsupportedError

# first, second, their composition without its header, shapes on the left
CASES = [
    ("a.{n} <-> b.{n}", "b.{i} <-> c.{i}", "a.{n} <-> c.{n}", {"a.1": (2,)}),
    ("a.{n}.w <-> b.{n}", "b.3 <-> c", "a.3.w <-> c", {"a.3.w": (2,)}),
    ("{x**}.w <-> {x**}.weight", "h.{n}.{p}.weight <-> blk.{n}.{p}",
     "h.{n}.{p}.w <-> blk.{n}.{p}", {"h.0.q.w": (2,), "h.1.k.w": (3,)}),
    ("a.{p}_emb <-> b.{p}_emb", "b.word_emb <-> c.word\nb.type_emb <-> c.kind",
     "a.word_emb <-> c.word\na.type_emb <-> c.kind", {"a.word_emb": (2, 3), "a.type_emb": (1, 3)}),
    ("a.{p} <-> b.{p} where p = weight | bias", "b.weight <-> c.w\nb.bias <-> c.b\n? b.x <-> c.x",
     "a.weight <-> c.w\na.bias <-> c.b", {"a.weight": (2, 3), "a.bias": (2,)}),
    ("a [o i w] <-> b [o w i]", "b [x y z] <-> c [z x y]", "a [o i w] <-> c [i o w]", {"a": (2, 3, 4)}),
    ("a <-> b", "b [x y] <-> c [y x]", "a [x y] <-> c [y x]", {"a": (2, 3)}),
    ("a [x y] <-> b [y x]", "b <-> c", "a [x y] <-> c [y x]", {"a": (2, 3)}),
    ("h.{n}.{e}.w [o i] <-> h.{n}.w [e o i] where e = experts", "h.{l}.w [a b c] <-> x.{l} [b c a]",
     "h.{n}.{e}.w [o i] <-> x.{n} [o i e]\n    where e = experts",
     {f"h.{n}.{e}.w": (2, 3) for n in (0, 1) for e in (0, 1, 2)}),
    ("a [(e x) y] <-> b.{e} [y x] where e = experts", "b.{k} [p q] <-> c [q k p]",
     "a [(e x) y] <-> c [x e y]\n    where e = experts", {"a": (6, 5)}),
    ("qkv [(q + k) d] <-> wq [q d], wk [k d] where q = 2 * heads", "w{p} [x y] <-> v.{p} [y x]",
     "qkv [(q + k) d] <-> v.q [d q], v.k [d k]\n    where q = 2 * heads", {"qkv": (9, 4)}),
    ("{m}.gate <-> {m}.g\n{m}.up <-> {m}.u", "{x}.g [g d], {x}.u [u d] <-> {x}.gu [(g + u) d] where g = 2, u = 4",
     "{x}.gate [g d], {x}.up [u d] <-> {x}.gu [(g + u) d]\n    where g = 2, u = 4", {"a.gate": (2, 3), "a.up": (4, 3)}),
    ("a [(h d) x] <-> b [h d x] where h = heads", "b [p q r] <-> c [(q p) r]",
     "a [(h d) x] <-> c [(d h) x]\n    where h = heads", {"a": (6, 5)}),
    ("a <-> b + 1", "b <-> c as float64", "a <-> c + 1 as float64", {"a": (3,)}),
    ("a <-> b\nrope -> recomputed", "b <-> c\nother -> original\nold -> recomputed",
     "a <-> c\nrope -> recomputed", {"a": (3,), "rope": (2,)}),
    ("h.{n} <-> g.{n}\npos <-> position", "g.{n} <-> f.{n}\nposition -> recomputed",
     "h.{n} <-> f.{n}\npos -> recomputed", {"h.0": (3,), "pos": (2,)}),
    ("a <-> b\nhead == a", "b <-> c", "a <-> c\nhead == a", {"a": (3,)}),
    ("? a <-> b", "b <-> c", "a <-> c", {"a": (3,)}),
    ("a.{n} <-> b.{n} where n = 0 | 2\nc.{n} <-> b.{n} where n = 1 | 3",
     "b.{n} [x y] <-> d.{n} [y x] where n = 0 | 2\nb.{n} <-> d.{n} where n = 1 | 3",
     "a.{n} [x y] <-> d.{n} [y x]\n    where n = 0 | 2\nc.{n} <-> d.{n}\n    where n = 1 | 3",
     {"a.0": (2, 3), "a.2": (2, 3), "c.1": (2, 3), "c.3": (2, 3)}),
    ("? a <-> b", "? b <-> c", "? a <-> c", {"a": (3,)}),
    ("a bits float32 <-> b bits uint16", "b <-> c", "a bits float32 <-> c bits uint16", {"a": (2, 3)}),
    ("a <-> b", "b bits float32 <-> c bits uint8", "a bits float32 <-> c bits uint8", {"a": (2, 3)}),
    ("a bits float32 <-> b bits int32", "b bits int32 <-> c bits uint8",
     "a bits float32 <-> c bits uint8", {"a": (2, 3)}),
    ("a [(g + u) b] bits float32 <-> g [g b] bits uint8, u [u b] bits uint8 where g = 1",
     "g <-> v\nu [x (y z)] bits uint8 <-> w [y x z] bits uint16 where z = 4",
     "a [(g + u) (y z)] bits float32 <-> v [g (y z)] bits uint8, w [y u z] bits uint16\n    where g = 1, z = 4",
     {"a": (3, 5)}),
]  # fmt: skip
CONFIG = {"experts": 3, "heads": 3}


def bits(name, shape):
    raw = np.random.default_rng(len(name)).bytes(4 * int(np.prod(shape)))
    return Dense(np.frombuffer(raw, np.float32).reshape(shape))


def through(table, values):
    headers = {name: Header(CODE[v.array.dtype], v.shape) for name, v in values.items()}
    return apply(table.bind(headers, config=CONFIG), values)


def same(one, other):
    return {name: (v.shape, v.array.tobytes()) for name, v in one.items()} == {
        name: (v.shape, v.array.tobytes()) for name, v in other.items()
    }


@pytest.mark.parametrize(("first", "second", "text", "shapes"), CASES)
def test_a_composition_is_the_two_in_turn(first, second, text, shapes):
    first, second = WeightMap.parse(first), WeightMap.parse(second)
    composed = first.then(second)
    assert str(composed) == f"weighbridge map 1\n{text}"
    assert WeightMap.parse(str(composed)) == composed
    values = {name: bits(name, shape) for name, shape in shapes.items()}
    assert same(through(composed, values), through(second, through(first, values)))
    there = through(second, through(first, values))
    home = second.inverse().then(first.inverse())
    assert same(through(home, there), through(composed.inverse(), there))


@given(data=st.data())
def test_any_rule_composes_with_renames_and_permutations(any_case, data):
    case = data.draw(any_case)
    rules = []
    for term in case.map.rules[0].right:
        axes = tuple(Atom(f"x{i}") for i in range(len(term.axes)))
        name = Name(("moved.", *term.name.parts))
        turned = tuple(data.draw(st.permutations(axes)))
        rules.append(Pairing((Term(term.name, axes),), (Term(name, turned),)))
    mover = WeightMap(tuple(rules))
    values = {name: Dense(array) for name, array in case.arrays.items()}
    composed = case.map.then(mover)
    middle = case.map.bind(case.headers)
    end = mover.bind(middle.layout)
    expected = apply(end, apply(middle, values))
    plan = composed.bind(case.headers)
    assert plan.layout == end.layout
    assert same(apply(plan, values), expected)
    back = mover.inverse().then(case.map.inverse()).bind(plan.layout)
    assert same(apply(back, expected), values)


REFUSED = [
    ("x [(q + k)] <-> a [q], b [k]", "a [q], b [k] <-> y [(q + k)]", "both have several tensors"),
    ("x [(q + k)] <-> a [(q + k)]", "a [(d h)] <-> y [(h d)]", "cut in different places"),
    ("x [a b] <-> y [b a]", "y [a] <-> z [a]", "2 axes meet 1"),
    ("x <-> y + 1", "y + 1 <-> z", "both change values"),
    ("x [h] <-> y [h] * c where c = m", "y <-> z", "a named amount"),
    ("else {**} <-> same", "a <-> b", "it is an `else`"),
    ("a <-> b", "b => c by $0 = Square(#0)", "it is a program"),
    ("b => a by $0 = Square(#0)", "a <-> c", "it is a program"),
    ("x [a b] bits uint8 <-> y [a b] bits uint32", "y [p q] <-> z [q p]", "axes of bytes meet"),
    ("x [a b] <-> y [b a]", "y [p q] bits uint8 <-> z [p q] bits uint32", "axes of bytes meet"),
    ("x bits uint8 <-> y bits uint32", "y bits uint16 <-> z bits uint32", "both change values"),
    ("x bits uint8 <-> y bits uint32", "y <-> z + 1", "each has it, and no other change"),
    ("x.{e} [o] <-> y.{e} [o]\nz.{e} [o] <-> w [e o]", "w <-> v\ny.{a}_{b} <-> u.{a}.{b}", None),
    ("x [e o] <-> y.{e} [o]", "y.3 <-> z", "the index e meets 3"),
    ("a.{x**} <-> b.{x**}", "{y**}.c <-> {y**}.d", "overlap"),
    ("a.{x}_b <-> c.{x}_b", "c.d_{y} <-> e.{y}", "overlap"),
    ("a.{p} <-> b.{p} where p = v | w", "b.{q} <-> c.{q} where q = w | z", "meets"),
    ("x [(q + k)] <-> a [q], b [k]", "a -> recomputed", "meets a part"),
    ("a <-> b\nh <-> g", "b <-> c\ng == b", "under other names"),
]


@pytest.mark.parametrize(("first", "second", "why"), REFUSED)
def test_what_no_rule_can_write_is_refused_by_name(first, second, why):
    if why is None:
        assert WeightMap.parse(first).then(WeightMap.parse(second)).rules
        return
    with pytest.raises(UnsupportedError, match=why):
        WeightMap.parse(first).then(WeightMap.parse(second))
