"""A map that says anything else than the class does is refused, and the rule is named."""

from __future__ import annotations

import mlx.core as mx
import pytest

from weighbridge.converters.checkpoints.base import Header
from weighbridge.converters.maps import WeightMap
from weighbridge.converters.maps.learn.proof import Proof
from weighbridge.converters.maps.learn.trace.recording import record
from weighbridge.converters.maps.learn.trace.shrinking import Excerpt
from weighbridge.errors import UnsupportedError

H = Header("BF16", (4, 4))
HEADERS = {"a": H, "b": H, "n": Header("BF16", (6,)), "c": Header("U8", (4, 4))}


def sanitize(w):
    return {"a": w["a"].T, "b": w["b"], "n": w["n"] + 1, "c": mx.from_fp8(w["c"])}


RIGHT = """a [x y] <-> [y x]
b <-> same
n <-> same + 1
c => c by $0 = FromFP8(#0) bfloat16
"""


def prove(text):
    Proof(WeightMap.parse(text), record(sanitize, HEADERS), {}).run()


def test_the_right_map_is_proved():
    prove(RIGHT)


@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        ("a [x y] <-> [y x]", "a <-> same", "rule `a <-> same` failed: a differs"),
        ("b <-> same", "b [x y] <-> [y x]", "rule `b [x y] <-> [y x]` failed: b differs"),
        ("+ 1", "+ 2", r"`n <-> same + 2` failed: n differs"),
        ("a [x y] <-> [y x]\nb <-> same", "a <-> b\nb <-> a", "the class makes b of b"),
        ("bfloat16", "float16", "another layout: c: the map makes F16"),
        ("c => c by $0 = FromFP8(#0) bfloat16", "c -> original", "c: the map makes None"),
        ("b <-> same\n", "", "does not fit: b BF16[4, 4] is in no rule"),
        (
            "$0 = FromFP8(#0)",
            "a = FromFP8(#0) bfloat16; b = Transpose(a) [1 0]; $0 = AsType(b)",
            "the class computes c by other steps",
        ),
    ],
)
def test_a_wrong_rule_is_named(right, wrong, says):
    assert right in RIGHT
    with pytest.raises(UnsupportedError) as caught:
        prove(RIGHT.replace(right, wrong))
    assert says in str(caught.value)


def test_axes_that_are_only_carried_along_are_made_small_for_the_proof():
    headers = {f"x.{e}.w": Header("BF16", (7168, 2048)) for e in range(4)}
    headers["kv"] = Header("BF16", (8 * 30, 4096))

    def moves(w):
        kv = w["kv"].reshape(8, 30, -1)
        return {
            "s": mx.stack([w[f"x.{e}.w"] for e in range(4)]),
            "k": kv[:, :10].swapaxes(1, 2),
            "v": kv[:, 10:],
        }

    trace = record(moves, headers)
    assert {h.nbytes < 100 for h in Excerpt(trace, ["s"]).headers.values()} == {True}
    small = Excerpt(trace, ["k", "v"]).headers["kv"]
    assert small.shape[0] == 240
    assert small.shape[1] < 8
    text = "x.{e}.w [a b] <-> s [e a b]\nkv [(h (k + v)) c] <-> k [h c k], v [h v c] where h = 8, k = 10"
    Proof(WeightMap.parse(text), trace, {}).run()
    wrong = WeightMap.parse(text.replace("s [e a b]", "s [e b a]"))
    with pytest.raises(UnsupportedError, match="the learned map makes another layout: s:"):
        Proof(wrong, trace, {}).run()
