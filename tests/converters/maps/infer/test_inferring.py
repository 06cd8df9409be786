"""What is inferred is right where it says so, and says so only where it is known."""

import ml_dtypes
import numpy as np
import pytest

from tests.converters.maps.infer.toys import (
    RENAMED,
    headers,
    model,
    port,
    ported,
    same_map,
    side,
    weights,
)
from weighbridge.converters.maps import WeightMap
from weighbridge.converters.maps.infer import Runs, Side, infer
from weighbridge.errors import BadInputError, WeighbridgeError

# Each is a way in which a port may store the same weights.
LAYOUTS = {
    "transposed and fused": RENAMED,
    "heads take turns": RENAMED.replace("[i (u + o)]", "[i (h (u + o))]")
    .replace("weight [o i]", "weight [(h o) i]", 1)
    .replace("weight [u i]", "weight [(h u) i]")
    .replace("o = u = 6", "h = 3, o = u = 2"),
    "blocks stacked": RENAMED.replace("h.{n}.oak.w [i o]", "oaks.w [i n o]"),
}
REVERSED = "".join(
    rule.replace("{n}", str(n), 1).replace("{n}", str(2 - n))
    if "up.weight" not in rule
    else rule.replace("layers.{n}", f"layers.{n}").replace("h.{n}", f"h.{2 - n}")
    for rule in RENAMED.replace("\n    where", " where").splitlines(keepends=True)
    for n in (range(3) if "{n}" in rule else (0,))
)


def drafted(text, *, held=False, run=False, change=lambda arrays: arrays):
    arrays = weights()
    there = change(ported(text, arrays))
    runs = Runs(model, port(text, arrays)) if run else None
    return infer(side("torch", arrays), side("port", there, held=held), runs)


@pytest.mark.parametrize("text", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("evidence", ["held", "run"])
def test_values_or_outputs_find_any_layout(text, evidence):
    draft = drafted(text, **{evidence: True})
    assert same_map(draft.text, text, weights(1))
    assert draft.proofs == {"value" if evidence == "held" else "outputs": 18}
    assert draft.guesses == ()


@pytest.mark.parametrize("evidence", ["held", "run"])
def test_blocks_in_another_order_are_found_and_not_folded(evidence):
    draft = drafted(REVERSED, **{evidence: True})
    assert same_map(draft.text, REVERSED, weights(1))
    assert "{n}" not in draft.text


def test_names_alone_prove_nothing_that_sizes_do_not():
    draft = drafted(RENAMED)
    assert draft.proofs["value"] == draft.proofs["outputs"] == 0
    said = {guess.left for guess in draft.guesses}
    assert "layers.*.mlp.gate.weight" in said
    assert "scale" not in said
    assert all("guess" in line for line in draft.text.splitlines() if "mlp" in line and "#" in line)


def test_names_alone_are_enough_where_they_speak():
    text = """
layers.{n}.norm.{p} <-> blocks.{n}.ln.{p}
    where p = weight | bias
layers.{n}.mlp.gate.weight <-> blocks.{n}.ffn.w1.weight
layers.{n}.mlp.up.weight <-> blocks.{n}.ffn.w3.weight
layers.{n}.mlp.down.weight <-> blocks.{n}.ffn.w2.weight
embed.weight <-> wte.weight
scale <-> temperature
head.weight <-> lm_head.weight
"""
    draft = drafted(text)
    assert same_map(draft.text, text, weights(1))
    assert "layers.{n}.mlp.up.weight <-> blocks.{n}.ffn.w3.weight  # guess" in draft.text


def test_values_in_a_narrower_dtype_are_recognised():
    draft = drafted(
        RENAMED, held=True, change=lambda a: {k: v.astype(ml_dtypes.bfloat16) for k, v in a.items()}
    )
    assert draft.proofs == {"value": 18}


def test_one_added_to_norms_is_recognised_and_written_down():
    def added(arrays):
        return {k: v + np.float32(1) if k.endswith("plum.a") else v for k, v in arrays.items()}

    draft = drafted(RENAMED, held=True, change=added)
    assert "layers.{n}.norm.weight <-> h.{n}.plum.a + 1  # by value" in draft.text
    assert draft.guesses == ()


def test_equal_values_stay_among_themselves_and_are_called_a_guess():
    arrays = weights()
    for n in range(3):
        arrays[f"layers.{n}.norm.weight"][:] = 1
        arrays[f"layers.{n}.norm.bias"][:] = 0
    there = ported(RENAMED, arrays)
    for n in range(3):  # the order of declaration must not be what decides
        there[f"h.{n}.plum.z"] = there.pop(f"h.{n}.plum.a")
    draft = infer(side("torch", arrays), side("port", there))
    assert same_map(draft.text, RENAMED.replace("plum.a", "plum.z"), arrays)


def test_trained_values_are_no_proof_and_a_note_says_so():
    draft = drafted(RENAMED, held=True, change=lambda a: {k: v * 1.5 for k, v in a.items()})
    assert draft.proofs["value"] == 0
    assert "no conversion" in draft.notes[0]
    assert "no conversion" in draft.text


def test_tensors_that_no_output_tells_apart_are_listed():
    def product(w):
        return {"y": w["one"] * w["other"] + w["third"]}

    def renamed(w):
        return {"y": w["a"] * w["b"] + w["c"]}

    arrays = {name: np.random.default_rng(0).normal(size=4) for name in ("one", "other", "third")}
    there = dict(zip("abc", arrays.values(), strict=True))
    draft = infer(side("torch", arrays), side("port", there, held=False), Runs(product, renamed))
    assert "third <-> c  # by outputs" in draft.text
    assert {guess.left for guess in draft.ambiguous} == {"one", "other"}
    assert draft.text.count("no output tells it from") == 2


def test_a_variance_in_repeated_blocks_may_be_asked_about():
    """A stack of vectors is no matrix: a negative variance would make every output not-a-number."""
    draw = np.random.default_rng(0)
    names = [f"h.{n}.{part}" for n in range(3) for part in ("mean", "var", "scale", "shift")]
    arrays = {name: draw.random(4) + 0.5 for name in names}

    def run(w):
        x = np.linspace(-1, 2, 12).reshape(3, 4)
        for n in range(3):
            mean, var, scale, shift = (w[name] for name in names[4 * n : 4 * n + 4])
            x = np.maximum((x - mean) / np.sqrt(var) * scale + shift, 0.1 * x)
        return {"y": x}

    def renamed(w):
        return run({name: w[name.replace("h.", "x.")[:-2]] for name in names})

    there = {name.replace("h.", "x.")[:-2]: arrays[name] for name in reversed(names)}
    draft = infer(side("torch", arrays), side("port", there, held=False), Runs(run, renamed))
    assert draft.proofs == {"outputs": 12}
    assert "h.{n}.var <-> x.{n}.v " in draft.text


def test_modules_that_differ_prove_nothing():
    arrays = weights()

    def other(w):
        return {"y": port(RENAMED, arrays)(w)["y"] + 0.01}

    there = ported(RENAMED, arrays)
    draft = infer(side("torch", arrays), side("port", there, held=False), Runs(model, other))
    assert draft.proofs["outputs"] == 0
    assert "compute different things" in draft.text


def test_a_tied_tensor_becomes_a_tie_and_buffers_are_recomputed():
    arrays = weights(tied=True) | {
        "rotary.inv_freq": np.ones(3, np.float32),
        "position_ids": np.arange(5),
        **{f"layers.{n}.count": np.zeros((), np.int64) for n in range(3)},
    }
    kept = {k: v for k, v in arrays.items() if k in weights() and k != "head.weight"}
    text = RENAMED.replace("head.weight <-> ash.w\n", "")
    draft = infer(side("torch", arrays), side("port", ported(text, kept)))
    assert "head.weight == embed.weight" in draft.text
    assert "rotary.inv_freq -> recomputed" in draft.text
    assert "position_ids -> recomputed" in draft.text
    assert "layers.{n}.count -> recomputed" in draft.text


@pytest.mark.parametrize(
    ("there", "says"),
    [
        ({}, "no floating-point weights"),
        ({"w": np.zeros((4, 2), np.uint32)}, "no floating-point weights"),
        ({"w": np.zeros((4, 5), np.float32)}, "cannot be the same model"),
        ({**weights(), "more": np.zeros((4, 5), np.float32)}, "more [4, 5]"),
    ],
)
def test_what_cannot_be_paired_is_refused_in_one_line(there, says):
    with pytest.raises(BadInputError) as error:
        infer(side("torch", weights()), side("port", there))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("seed", range(8))
def test_a_draft_always_leads_from_one_side_to_the_other(seed):
    """Random sides of the same sizes: the map need not be right, but it must bind."""
    draw = np.random.default_rng(seed)
    shapes = [tuple(draw.choice([2, 3, 5], draw.integers(1, 4))) for _ in range(8)]
    left = {f"m.{at}.w": draw.normal(size=shape) for at, shape in enumerate(shapes)}
    right = {f"x{at}.k": draw.normal(size=shape[::-1]) for at, shape in enumerate(shapes)}
    draft = infer(side("torch", left), Side("port", headers(right)))
    plan = WeightMap.parse(draft.text).bind(headers(left))
    assert {n: it.shape for n, it in plan.layout.items()} == {n: a.shape for n, a in right.items()}


def test_errors_are_ours(monkeypatch):
    with pytest.raises(WeighbridgeError):
        infer(Side("torch", {}), side("port", weights()))
