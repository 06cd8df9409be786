"""Low-rank updates follow a map as the weights themselves would."""

from __future__ import annotations

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.converters.checkpoints.base import Header
from weighbridge.converters.common.dtypes import CODE
from weighbridge.converters.maps import WeightMap, apply
from weighbridge.converters.maps.notation.axes import names, shape
from weighbridge.converters.values import Dense, LowRank
from weighbridge.errors import UnsupportedError

# rule, shapes of the sources, which of them have an update
EXACT = [
    ("x <-> y", {"x": (4, 6)}, "x"),
    ("x [o i] <-> y [o i]", {"x": (4, 6)}, "x"),
    ("x [o i] <-> y [i o]", {"x": (4, 6)}, "x"),
    ("x [(h d) i] <-> y [(d h) i]", {"x": (4, 6)}, "x"),
    ("x [o (h d)] <-> y [(d h) o]", {"x": (4, 6)}, "x"),
    ("x [(q + k) i] <-> y [q i], z [k i]", {"x": (6, 4)}, "x"),
    ("x [(q + k) i] <-> y [q i], z [i k]", {"x": (6, 4)}, "x"),
    ("x [i (q + k)] <-> y [i q], z [i k]", {"x": (4, 6)}, "x"),
    ("x [(h (q + k)) i] <-> y [(h q) i], z [(h k) i]", {"x": (12, 4)}, "x"),
    ("x [(q + k) (h + d)] <-> a [h q], b [q d], c [k h], e [k d]", {"x": (6, 6)}, "x"),
    ("y [q i], z [k i] <-> x [(q + k) i]", {"y": (2, 5), "z": (4, 5)}, "yz"),
    ("y [q i], z [k i] <-> x [(q + k) i]", {"y": (2, 5), "z": (4, 5)}, "z"),
    ("y [i q], z [k i] <-> x [i (q + k)]", {"y": (5, 2), "z": (4, 5)}, "yz"),
    ("y [i q], z [i k] <-> x [i (k + q)]", {"y": (5, 2), "z": (5, 4)}, "yz"),
    ("y [i q], z [i k] <-> x [(k + q) i]", {"y": (5, 2), "z": (5, 4)}, "yz"),
    ("y [q i], z [k i], w [v i] <-> x [(q + k + v) i]", {"y": (2, 5), "z": (4, 5), "w": (1, 5)}, "yw"),
    ("y [(q + k) i], z [v i] <-> x [(k + v) i], w [q i]", {"y": (6, 5), "z": (3, 5)}, "yz"),
    ("x <-> y + 1", {"x": (4, 6)}, "x"),
    ("x [o i] + 3 <-> y [i o] * 4 as float64", {"x": (4, 6)}, "x"),
]  # fmt: skip
SIZES = {"q": 2, "h": 2, "d": 3, "k": 4, "v": 3}
PARTS = {"q": 2, "h": 2}  # enough where a shape says the rest


def lora(name, shape, rank=3, scale=0.5):
    normal = np.random.default_rng(ord(name)).normal
    return LowRank(normal(size=(rank, shape[1])), normal(size=(shape[0], rank)), scale)


def bound(text, shapes, dtype="F64"):
    table = WeightMap.parse(text)
    sizes = {k: v for k, v in PARTS.items() if k in table.rules[0].compound}
    return table.bind({name: Header(dtype, s) for name, s in shapes.items()}, sizes=sizes)


@pytest.mark.parametrize(("text", "shapes", "updated"), EXACT)
def test_an_update_moves_as_its_weight_does(text, shapes, updated):
    plan = bound(text, shapes)
    bases = {name: np.random.default_rng(7).normal(size=shape) for name, shape in shapes.items()}
    updates = {name: lora(name, shapes[name]) for name in updated}
    tuned = {n: base + updates[n].delta() if n in updates else base for n, base in bases.items()}
    before = apply(plan, {name: Dense(array) for name, array in bases.items()})
    after = apply(plan, {name: Dense(array) for name, array in tuned.items()})
    moved = apply(plan, updates)
    for name in after:
        expected = after[name].array - before[name].array
        delta = moved[name].delta() if name in moved else np.zeros_like(expected)
        np.testing.assert_allclose(delta, expected, atol=1e-12)


def test_ranks_add_up_and_equal_scales_stay():
    plan = bound("y [q i], z [k i] <-> x [(q + k) i]", {"y": (2, 5), "z": (4, 5)})
    one = apply(plan, {"y": lora("y", (2, 5), 3), "z": lora("z", (4, 5), 2)})["x"]
    assert (one.rank, one.scale) == (5, 0.5)
    updates = {"y": lora("y", (2, 5), 3, 2.0), "z": lora("z", (4, 5), 2)}
    other = apply(plan, updates)["x"]
    expected = np.concatenate([updates["y"].delta(), updates["z"].delta()])
    np.testing.assert_allclose(other.delta(), expected, atol=1e-12)


@st.composite
def matrices(draw):
    """Draw a rule between two matrices of the same factors, sums among them, and its sizes."""
    atoms = [f"a{i}" for i in range(draw(st.integers(1, 4)))]
    groups = [atom if draw(st.booleans()) else f"({atom} + {atom}s)" for atom in atoms]
    texts = []
    for _ in range(2):
        order = draw(st.permutations(groups))
        cut = draw(st.integers(0, len(order)))
        texts.append(
            " ".join(f"({' '.join(part)})" if part else "1" for part in (order[:cut], order[cut:]))
        )
    sizes = {name: draw(st.integers(1, 3)) for atom in atoms for name in (atom, f"{atom}s")}
    return f"x [{texts[0]}] <-> y [{texts[1]}]", sizes


@given(drawn=matrices())
def test_an_update_is_moved_exactly_or_refused(drawn):
    text, sizes = drawn
    rule = WeightMap.parse(text).rules[0]
    source = shape(rule.left[0].axes, sizes)
    where = ", ".join(f"{name} = {sizes[name]}" for name in sorted(rule.atoms))
    plan = WeightMap.parse(f"{text} where {where}").bind({"x": Header("F64", source)})
    update = lora("x", source)
    try:
        moved = apply(plan, {"x": update})["y"].delta()
    except UnsupportedError:
        rows, columns = ({*names((axis,))} for axis in rule.left[0].axes)
        assert {*names((rule.right[0].axes[0],))} not in (rows, columns)
        return
    np.testing.assert_allclose(
        moved, apply(plan, {"x": Dense(update.delta())})["y"].array, atol=1e-9
    )


REFUSED = [
    ("x [(h o) i] <-> y [h o i]", {"x": (4, 6)}, "counts matrices on the other"),
    ("x [o i] <-> y [(o i)]", {"x": (4, 6)}, "of weights with two axes or more"),
    ("x [(h o) (h2 i)] <-> y [(h h2) (o i)]", {"x": (4, 6)}, "rows and columns mix"),
]


@pytest.mark.parametrize(("text", "shapes", "why"), REFUSED)
def test_what_is_not_of_low_rank_is_refused_by_name(text, shapes, why):
    table = WeightMap.parse(text)
    headers = {name: Header("F64", shape) for name, shape in shapes.items()}
    plan = table.bind(headers, sizes={"h": 2, "h2": 2})
    name = next(iter(shapes))
    with pytest.raises(UnsupportedError, match=why) as caught:
        apply(plan, {name: lora("x", shapes[name])})
    assert text in str(caught.value)
    assert name in str(caught.value)


def dora(name, shape):
    plain = lora(name, shape)
    norms = np.random.default_rng(1).uniform(1, 2, size=shape[0])
    return LowRank(plain.a, plain.b, plain.scale, norms)


def dora_weight(base, update):
    """Return m * (W + delta) / |W + delta| by row (Liu et al. 2024, equation 5)."""
    tuned = base + update.delta()
    return tuned * (update.magnitude / np.linalg.norm(tuned, axis=1))[:, None]


DORA = [
    ("x [(h d) i] <-> y [(d h) i]", {"x": (4, 6)}),
    ("x [(q + k) i] <-> y [q i], z [k i]", {"x": (6, 4)}),
    ("x [q (h d)] <-> y [q (d h)]", {"x": (5, 6)}),
    ("y [q i], z [k i] <-> x [(k + q) i]", {"y": (2, 5), "z": (4, 5)}),
]


@pytest.mark.parametrize(("text", "shapes"), DORA)
def test_dora_norms_follow_whole_rows(text, shapes):
    plan = bound(text, shapes)
    bases = {name: np.random.default_rng(7).normal(size=shape) for name, shape in shapes.items()}
    updates = {name: dora(name, shape) for name, shape in shapes.items()}
    tuned = {name: dora_weight(base, updates[name]) for name, base in bases.items()}
    before = apply(plan, {name: Dense(array) for name, array in bases.items()})
    after = apply(plan, {name: Dense(array) for name, array in tuned.items()})
    for name, update in apply(plan, updates).items():
        np.testing.assert_allclose(dora_weight(before[name].array, update), after[name].array)


DORA_REFUSED = [
    ("x [o i] <-> y [i o]", {"x": dora("x", (4, 6))}, {"x": (4, 6)}, "whole rows"),
    ("x [i (q + k)] <-> y [i q], z [i k]", {"x": dora("x", (4, 6))}, {"x": (4, 6)}, "whole rows"),
    ("x <-> y * 3", {"x": dora("x", (4, 6))}, {"x": (4, 6)}, "norms change"),
    ("y [q i], z [k i] <-> x [(q + k) i]", {"y": dora("y", (2, 5))}, {"y": (2, 5), "z": (4, 5)},
     "missing for some of the rows"),
    ("y [q i], z [k i] <-> x [(q + k) i]", {"y": dora("y", (2, 5)), "z": lora("z", (4, 5))},
     {"y": (2, 5), "z": (4, 5)}, "missing for some of the rows"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "updates", "shapes", "why"), DORA_REFUSED)
def test_dora_norms_that_would_change_are_refused(text, updates, shapes, why):
    with pytest.raises(UnsupportedError, match=why):
        apply(bound(text, shapes), updates)


def test_an_update_beside_a_whole_tensor_is_refused_by_name():
    shapes = {"x.0": (4, 6), "x.1": (4, 6)}
    plan = bound("x.{e} [o i] <-> y [e o i]", shapes)
    with pytest.raises(UnsupportedError, match=r"on x\.0, x\.1: some of these are low-rank"):
        apply(plan, {"x.0": lora("x", (4, 6)), "x.1": Dense(np.zeros((4, 6)))})


@given(data=st.data())
def test_reinterpreted_bits_come_back_one_and_all(any_bits_case, data):
    case = data.draw(any_bits_case)
    assert WeightMap.parse(str(case.map)) == case.map
    plan = case.map.bind(case.headers)
    assert all(step.exact for step in plan.steps)
    values = {name: Dense(array) for name, array in case.arrays.items()}
    there = apply(plan, values)
    assert {n: (CODE[v.array.dtype], v.shape) for n, v in there.items()} == {
        name: tuple(header) for name, header in plan.layout.items()
    }
    back = case.map.inverse().bind(plan.layout, sizes=plan.sizes)
    assert back.layout == case.headers
    home = apply(back, there)
    assert {n: v.array.tobytes() for n, v in home.items()} == {
        name: array.tobytes() for name, array in case.arrays.items()
    }


def test_mxfp4_blocks_are_packed_as_mlx_lm_packs_them():
    """gpt_oss.py of mlx-lm, `sanitize`: view as uint32, merge, take every other row."""
    text = """
x_blocks [e (n (g + u)) k b] bits uint8 <-> gate [e (n g) (k b)] bits uint32, up [e (n u) (k b)] bits uint32
    where g = u = 1"""
    packed = np.random.default_rng(0).integers(0, 256, (2, 6, 3, 16), dtype=np.uint8)
    plan = WeightMap.parse(text).bind({"x_blocks": Header("U8", packed.shape)})
    made = apply(plan, {"x_blocks": Dense(packed)})
    whole = mx.flatten(mx.array(packed).view(mx.uint32), -2)
    np.testing.assert_array_equal(made["gate"].array, np.array(mx.contiguous(whole[:, ::2])))
    np.testing.assert_array_equal(made["up"].array, np.array(mx.contiguous(whole[:, 1::2])))


def test_updates_of_reinterpreted_bits_are_refused_by_name():
    plan = WeightMap.parse("x bits float32 <-> y bits uint8").bind({"x": Header("F32", (4, 6))})
    with pytest.raises(UnsupportedError, match="axes here are of bytes"):
        apply(plan, {"x": lora("x", (4, 6))})


def test_what_is_narrowed_after_a_change_comes_back_through_the_wider_dtype():
    """A bfloat16 less one is not a bfloat16, but a float32; in bfloat16 it would be rounded."""
    rule = WeightMap.parse("w as float32 <-> same + 1 as bfloat16")
    kept = np.linspace(0.01, 3, 301).astype(ml_dtypes.bfloat16)
    home = rule.inverse().bind({"w": Header("BF16", kept.shape)})
    there = rule.bind({"w": Header("F32", kept.shape)})
    again = apply(there, apply(home, {"w": Dense(kept)}))
    assert again["w"].array.tobytes() == kept.tobytes()
