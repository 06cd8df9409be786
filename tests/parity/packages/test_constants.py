"""Constants that a converter makes are explained by rules, which the values have to bear out."""

from typing import ClassVar

import numpy as np
import pytest

from weighbridge.parity.packages.constants import contradictions, exact_by_rule, explain_made
from weighbridge.parity.packages.exact import exact_constants, exact_scalars
from weighbridge.parity.packages.source import SourceTensors
from weighbridge.parity.reference.computed import Computed
from weighbridge.parity.weights.fingerprints import explain
from weighbridge.parity.weights.sketches.sketch import ArrayWeights, sketch

RANDOM = np.random.default_rng(0)
STATE = {
    "w": RANDOM.normal(size=(5, 3)).astype(np.float32),
    "norm": RANDOM.normal(size=7).astype(np.float32),
    "alpha": np.array(0.7, np.float32),
}
FREQUENCIES = (1e4 ** -(np.arange(4) / 4)).astype(np.float32)
RULES = {
    "bias": {"fill": 0.0},
    "inv_freq": {"buffer": "rotary.inv_freq"},
    "add": {"value": ["add", {"key": "norm"}, 1.0]},
}


class Source(SourceTensors):
    """What a source would read."""

    buffers: ClassVar = {}

    def __init__(self, state):
        super().__init__(model=None)
        self.state = state

    def own(self, name):
        return name

    def read(self, kind, name):
        return {"rotary.inv_freq": FREQUENCIES}[name] if kind == "buffer" else self.state[name]


def package(**changes):
    """Return the constants of a float16 program, some of them changed."""
    exact = {
        "w_to_fp16": STATE["w"],
        "alpha_to_fp16": STATE["alpha"],
        "bias": np.zeros(4, np.float32),
        "inv_freq": FREQUENCIES,
        "add": STATE["norm"] + 1,
    }
    arrays = {name: array.astype(np.float16) for name, array in {**exact, **changes}.items()}
    return ArrayWeights({name: array for name, array in arrays.items() if array.size})


def judged(weights, rules=RULES, state=STATE):
    """Return explanations by name, the ones that are not right, and what the manifest gets wrong."""
    sketches = {name: sketch(array) for name, array in state.items()}
    manifest = {"made": rules}
    source = Source(state)
    found = explain_made(explain(sketches, weights), manifest, weights, sketches, source)
    untrue = list(contradictions(manifest, found, weights, sketches, source))
    return {it.name: it for it in found}, [it.name for it in found if not it.ok], untrue


def test_what_a_converter_makes_is_explained_by_its_rule():
    found, wrong, _ = judged(package())
    assert wrong == []
    assert [found[name].kind for name in RULES] == ["made"] * 3
    assert found["add"].detail == "add(norm, 1)"


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("bias", np.array([0, 0, 1e-3, 0], np.float32)),
        ("inv_freq", FREQUENCIES * np.float32(1.002)),
        ("add", STATE["norm"] + np.float32(1.01)),
        ("add", STATE["norm"]),
    ],
)
def test_a_rule_that_the_values_do_not_bear_out_explains_nothing(name, changed):
    found, _, untrue = judged(package(**{name: changed}))
    assert not found[name].ok or any(name in line for line in untrue)


def test_a_tensor_without_axes_is_missing_unless_a_constant_carries_it():
    _, wrong, _ = judged(package(alpha_to_fp16=np.zeros(0)))
    assert wrong == ["alpha"]
    _, wrong, _ = judged(package(alpha_to_fp16=np.array(0.9, np.float32)))
    assert "alpha_to_fp16" in wrong


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_tensor_of_zeros_or_ones_may_be_left_out(value):
    state = {**STATE, "gamma": np.full(6, value, np.float32)}
    found, wrong, _ = judged(package(), state=state)
    assert (found["gamma"].kind, wrong) == ("unused", [])
    state["gamma"] = np.full(6, 0.5, np.float32)
    assert judged(package(), state=state)[1] == ["gamma"]


def test_a_key_that_is_not_the_constants_own_is_told():
    weights = package(other=STATE["w"][::-1].copy())
    state = {**STATE, "v": STATE["w"][::-1].copy()}
    sketches = {name: sketch(array) for name, array in state.items()}
    found = explain(sketches, weights)
    manifest = {"weights": {"w_to_fp16": {"key": "v"}, "other": {"key": "v", "xxh3": "x"}}}
    told = "; ".join(contradictions(manifest, found, weights, sketches, Source(state)))
    assert "w_to_fp16 carries the values of w, not of v" in told
    assert "other: v has another hash" in told


def test_constants_are_put_back_to_what_they_were_before_rounding():
    weights, sketches = package(), {name: sketch(array) for name, array in STATE.items()}
    manifest = {"made": RULES}
    found = explain_made(explain(sketches, weights), manifest, weights, sketches, Source(STATE))
    exact, unknown = exact_constants(manifest, found, weights, Source(STATE))
    assert unknown == []
    np.testing.assert_array_equal(exact["w_to_fp16"], STATE["w"])
    np.testing.assert_array_equal(exact["inv_freq"], FREQUENCIES)
    np.testing.assert_allclose(exact["add"], STATE["norm"] + 1, rtol=1e-7)


def test_a_number_before_rounding_counts_only_where_it_rounds_to_the_constant():
    scalars = {"eps": np.float16(1e-6), "scale": np.float16(0.3535)}
    exact = {"eps": 1e-6, "scale": 0.36}
    assert exact_scalars({"exact": exact}, scalars) == {"eps": np.asarray(1e-6)}


@pytest.mark.parametrize("rule", [{"key": "w"}, ["order", {"key": "w"}, 4.0, 3.0, 2.0, 1.0, 0.0]])
def test_numbers_that_are_only_moved_are_the_sources_own_bit_for_bit(rule):
    exact = STATE["w"] if isinstance(rule, dict) else STATE["w"][::-1]
    near = exact.copy()
    near[2, 1] = np.nextafter(near[2, 1], np.float32(9))
    source = Source(STATE)
    assert exact_by_rule(near, {"value": rule}, source) is None
    np.testing.assert_array_equal(exact_by_rule(exact, {"value": rule}, source), exact)


def test_integers_that_the_source_computes_explain_no_constant_that_is_nan():
    source = Source({})
    source.computed = {"positions": Computed(np.arange(2), ())}
    unknown = np.float32([np.nan, 1])
    assert exact_by_rule(unknown, {"computed": "positions"}, source) is None
    np.testing.assert_array_equal(
        exact_by_rule(np.float32([0, 1]), {"computed": "positions"}, source), [0, 1]
    )
