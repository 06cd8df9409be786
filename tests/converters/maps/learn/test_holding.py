"""What a few experts tell of all is what pairing all of them says."""

from __future__ import annotations

import pytest

from weighbridge.converters.checkpoints.base import Header
from weighbridge.converters.maps import WeightMap
from weighbridge.converters.maps.learn.holding import layout_of_all, speaks_for_all
from weighbridge.converters.maps.learn.trace.reduction import Mixture
from weighbridge.errors import MismatchError

CONFIG = {"num_experts": 40, "num_hidden_layers": 2, "width": 40}
HEADERS = {
    **{f"l.{n}.experts.{e}.w": Header("BF16", (3, 5)) for n in range(2) for e in range(40)},
    **{f"l.{n}.experts.{e}.s": Header("F32", (3, 1)) for n in range(2) for e in range(40)},
    "norm": Header("BF16", (40,)),
}
ADD = "by a = AsType(#0) float32; $0 = Multiply(a, #1)"


def both(text, told=True):
    """Return the layout as a few experts tell it, after a comparison with that of all."""
    weight_map, mixture = WeightMap.parse(text), Mixture(CONFIG, HEADERS)
    few, _ = next(mixture.attempts())
    plan = weight_map.bind(few.headers, config=few.config)
    assert speaks_for_all(weight_map, plan, mixture, few) == told
    layout = layout_of_all(weight_map, mixture, few)
    assert layout == weight_map.bind(HEADERS, config=CONFIG).layout
    return layout


@pytest.mark.parametrize(
    "experts",
    [
        "l.{n}.experts.{e}.w [a b] <-> l.{n}.w [e a b]\nl.{n}.experts.{e}.s [a 1] <-> l.{n}.s [a e]",
        f"l.{{n}}.experts.{{e}}.w, l.{{n}}.experts.{{e}}.s => l.{{n}}.w {ADD}",
    ],
)
@pytest.mark.parametrize("where", ["", "where e = num_experts\n"])
def test_families_of_a_few_tell_the_layout_of_all(experts, where):
    assert 40 in both(f"{where}{experts}\nnorm <-> same")["l.0.w"].shape


def test_experts_that_stay_apart_are_all_paired():
    names = "l.{n}.experts.{x}.w <-> l.{n}.blocks.{x}.w\nl.{n}.experts.{x}.s <-> same"
    assert len(both(f"{names}\nnorm <-> same", told=False)) == len(HEADERS)


def test_a_rule_for_those_that_were_seen_does_not_speak_for_the_others():
    text = "l.{n}.experts.{x}.w <-> same where x = 0 | 1 | 2 | 3\nl.{n}.experts.{e}.s [a b] <-> l.{n}.s [e a b]"
    mixture = Mixture(CONFIG, HEADERS)
    few, _ = next(mixture.attempts())
    with pytest.raises(MismatchError, match="unexpected"):
        layout_of_all(WeightMap.parse(f"{text}\nnorm <-> same"), mixture, few)
