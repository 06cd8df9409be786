"""A name finds the rules that speak of it, as comparing it with each of them would."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weighbridge.converters.checkpoints.base import Header
from weighbridge.converters.maps import WeightMap
from weighbridge.converters.maps.binding import matching
from weighbridge.converters.maps.binding.matching import Matcher
from weighbridge.converters.maps.notation.names import Capture, Name, match
from weighbridge.converters.maps.notation.rules import Drop, Pairing, Term

from ..deepseek import Sizes, headers, text

PIECES = st.sampled_from(["a", "b1", "1", "10", "0", "w_2", ".", "_", "x.3", ".y", "12."])
PARTS = st.builds(Capture, st.sampled_from(["n", "e", "m"]), st.booleans()) | PIECES


@st.composite
def tables(draw):
    """Draw names with captures."""
    names = draw(st.lists(st.lists(PARTS, min_size=1, max_size=5), min_size=1, max_size=3))
    return [name for parts in names if (name := Name(tuple(parts))).flaw() is None]


NUMBERS = st.sampled_from(["0", "1", "3", "10", "007", "12", "2"])


@st.composite
def fitting(draw, name):
    """Draw a tensor's name that NAME may spell."""
    filled = {c.name: draw(st.lists(NUMBERS | PIECES, min_size=1, max_size=3).map("".join))
              for c in name.captures}  # fmt: skip
    return name.fill(filled)


@given(data=st.data())
@settings(max_examples=50)
def test_every_rule_that_a_comparison_finds_is_found(data):
    names = data.draw(tables())
    rules = [Drop(name, "recomputed") for name in names]
    matcher = Matcher(rules, "left")
    pool = [data.draw(fitting(name)) for name in names] + data.draw(
        st.lists(st.lists(NUMBERS | PIECES, min_size=1).map("".join), max_size=3)
    )
    for text_ in pool:
        expected = [
            (number, found)
            for number, name in enumerate(names)
            if (found := match(name, text_)) is not None
        ]
        assert [(m.rule, m.captures) for m in matcher(text_)] == expected


@given(data=st.data())
@settings(max_examples=30)
def test_an_index_starts_with_no_zero(data):
    name = data.draw(tables())
    name = Name(("h", *(name[0].parts if name else ()), ".", Capture("i"), ".w"))
    if name.flaw() is not None or any(c.deep and c.name == "i" for c in name.captures):
        return
    rule = WeightMap.parse("h.{i}.w [o] <-> h [i o]").rules[0]
    rule = Pairing((Term(name, rule.left[0].axes),), rule.right)
    matcher = Matcher([rule], "left")
    for text_ in (data.draw(fitting(name)) for _ in range(3)):
        expected = match(name, text_, rule.indices)
        assert [m.captures for m in matcher(text_)] == ([] if expected is None else [expected])


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("back", [False, True])
def test_a_large_checkpoint_is_compared_a_skeleton_at_a_time(fp8, back, monkeypatch):
    config = Sizes(layers=7, experts=5, hidden=256, dense_width=384, expert_width=128, heads=2,
                   q_rank=128, kv_rank=130, nope=8, rope=4, value=16, vocabulary=12)  # fmt: skip
    table, given_ = WeightMap.parse(text(config, fp8)), headers(config, fp8)
    there = table.bind(given_)
    source = there.layout if back else given_
    directed = table.inverse() if back else table
    compared = []
    original = matching.Index.fitting
    monkeypatch.setattr(
        matching.Index, "fitting", lambda self, s: compared.append(s) or original(self, s)
    )
    monkeypatch.setattr(matching, "regex", None)  # names are not compared one by one
    plan = directed.bind(source, sizes=there.sizes)
    assert len(compared) < 80
    assert len(compared) == len({*compared}) or len(compared) <= 2 * len({*compared})
    if back and not fp8:
        kept = {n: h for n, h in given_.items() if not n.startswith("model.layers.7.")}
        assert plan.layout == kept


def test_of_two_rules_the_one_that_does_not_allow_a_name_gives_way():
    table = WeightMap.parse(
        """
    h.{n}.w [a b] <-> [b a] where n = 0 | 2
h.{n}.w <-> same where n = 1 | 3
h.4.{**} -> original
h.{n}.v <-> same where n = 4
""".lstrip("\n ").replace("\n    ", "\n")
    )
    given_ = {f"h.{n}.w": Header("F32", (2, 3)) for n in range(5)}
    given_ |= {f"h.{n}.v": Header("F32", (2,)) for n in range(4)}
    plan = table.bind(given_)
    assert [plan.layout[f"h.{n}.w"].shape for n in range(4)] == [(3, 2), (2, 3)] * 2
    assert [item.name for item in plan.dropped] == ["h.4.w"]
    back = table.inverse().bind(plan.layout)
    assert back.layout == {n: h for n, h in given_.items() if n != "h.4.w"}
