"""Updates of experts and of fused projections follow the map as their weights do."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.converters.checkpoints.base import Header
from weighbridge.converters.maps import WeightMap, apply
from weighbridge.converters.values import Dense, LowRank
from weighbridge.errors import UnsupportedError

STACK = "x.{e}.w [o i] <-> y [e o i]"
FUSED = "x [(q + k + v) i] <-> q [q i], k [k i], v [v i] where q = 4, k = 2, v = 3"
EXPERTS = "x [e (g + u) i] <-> g [e g i], u [e u i] where g = 4"


def lora(shape, rank=2, scale=0.5, *, dtype=np.float64, seed=0):
    *lead, out, into = shape
    normal = np.random.default_rng(seed).normal
    a = normal(size=(*lead, rank, into)).astype(dtype)
    return LowRank(a, normal(size=(*lead, out, rank)).astype(dtype), scale)


def bound(text, shapes, dtype="F64"):
    return WeightMap.parse(text).bind({n: Header(dtype, shape) for n, shape in shapes.items()})


def follows(text, shapes, updates):
    """Assert that UPDATES, moved, are the difference that they make to moved weights."""
    plan = bound(text, shapes)
    bases = {name: np.random.default_rng(7).normal(size=shape) for name, shape in shapes.items()}
    tuned = {n: base + updates[n].delta() if n in updates else base for n, base in bases.items()}
    before = apply(plan, {name: Dense(array) for name, array in bases.items()})
    after = apply(plan, {name: Dense(array) for name, array in tuned.items()})
    moved = apply(plan, updates)
    for name, weight in after.items():
        expected = weight.array - before[name].array
        found = moved[name].delta() if name in moved else np.zeros_like(expected)
        np.testing.assert_allclose(found, expected, atol=1e-12)
    return moved


def same_bytes(one, other):
    assert one.keys() == other.keys()
    for name, update in one.items():
        assert update.scale == other[name].scale
        assert (update.a.dtype, update.b.dtype) == (other[name].a.dtype, other[name].b.dtype)
        assert update.a.tobytes() == other[name].a.tobytes()
        assert update.b.tobytes() == other[name].b.tobytes()


EXACT = {
    "stacked": (STACK, {f"x.{e}.w": (4, 6) for e in range(3)}),
    "stacked and transposed": ("x.{e}.w [o i] <-> y [e i o]", {f"x.{e}.w": (4, 6) for e in (0, 1)}),
    "square and transposed": ("x.{e}.w [o i] <-> y [e i o]", {f"x.{e}.w": (4, 4) for e in (0, 1)}),
    "taken apart": ("y [e o i] <-> x.{e}.w [o i]", {"y": (3, 4, 6)}),
    "twice a family": ("x.{f}.{e} [o i] <-> y.{f} [e o i]", {"x.0.0": (4, 6), "x.0.1": (4, 6)}),
    "a family of two": ("x.{f}.{e} [o i] <-> y [e f i o]", {f"x.{n}": (4, 6) for n in (
        "0.0", "0.1", "1.0", "1.1", "2.0", "2.1")}),
    "experts split": (EXPERTS, {"x": (3, 7, 6)}),
    "experts fused": ("g [e g i], u [e u i] <-> x [e (g + u) i]", {"g": (3, 4, 6), "u": (3, 2, 6)}),
    "fused per expert": (
        "g.{e} [g i], u.{e} [u i] <-> x [e (g + u) i]",
        {"g.0": (4, 6), "g.1": (4, 6), "u.0": (2, 6), "u.1": (2, 6)},
    ),
    "leading axes change places": ("x [e f o i] <-> y [f e i o]", {"x": (2, 3, 4, 5)}),
    "an axis of one": ("x [o i] <-> y [1 o i]", {"x": (4, 6)}),
    "an axis of one within": ("x [o 1 i] <-> y [o i 1]", {"x": (2, 1, 3)}),
    "scaled": ("x [e o i] <-> y [e o i] * 4", {"x": (2, 4, 3)}),
}  # fmt: skip


@pytest.mark.parametrize("case", EXACT)
def test_updates_of_stacks_move_as_their_weights_do(case):
    text, shapes = EXACT[case]
    follows(text, shapes, {n: lora(s, seed=at) for at, (n, s) in enumerate(shapes.items())})


@given(
    ranks=st.lists(st.integers(1, 3) | st.none(), min_size=2, max_size=5),
    scales=st.lists(st.sampled_from([0.5, 2.0, 0.7]), min_size=5, max_size=5),
)
def test_of_a_stack_any_rank_any_scale_and_any_part_may_be_there(ranks, scales):
    shapes = {f"x.{e}.w": (4, 6) for e in range(len(ranks))}
    updates = {
        f"x.{e}.w": lora((4, 6), rank, scales[e], seed=e) for e, rank in enumerate(ranks) if rank
    }
    moved = follows(STACK, shapes, updates)
    if updates:
        assert moved["y"].rank == max(filter(None, ranks))
        assert moved["y"].scale == next(iter(updates.values())).scale


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shapes", [(4, 6), (4, 4), (2, 2)])
def test_a_stack_taken_apart_and_stacked_is_the_same_bytes(dtype, shapes):
    headers = {f"x.{e}.w": shapes for e in range(3)}
    there, updates = bound(STACK, headers), {
        name: lora(shapes, dtype=dtype, seed=e) for e, name in enumerate(headers)
    }  # fmt: skip
    home = WeightMap.parse(STACK).inverse().bind(there.layout)
    stacked = apply(there, updates)
    same_bytes(apply(home, stacked), updates)
    same_bytes(apply(there, apply(home, stacked)), stacked)


SPLITS = {
    "rows": (FUSED, {"x": (9, 6)}),
    "rows of experts": (EXPERTS, {"x": (3, 7, 6)}),
    "square": ("x [(q + k) i] <-> q [q i], k [k i] where q = 2", {"x": (4, 4)}),
    "heads": ("x [(h (q + k)) i] <-> q [(h q) i], k [(h k) i] where h = 3, q = 2", {"x": (9, 6)}),
    "columns": ("x [i (q + k)] <-> q [i q], k [i k] where q = 2", {"x": (4, 6)}),
    "transposed": ("x [i (q + k)] <-> q [q i], k [k i] where q = 2", {"x": (4, 6)}),
    "expert by expert": ("x [e (g + u) i] <-> g.{e} [g i], u.{e} [u i] where g = 4", {"x": (3, 7, 6)}),
    "both sides": ("x [(q + k) (h + d)] <-> a [q h], b [q d], c [k h], e [k d] where q = 2, h = 3", {"x": (6, 7)}),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("case", SPLITS)
def test_a_join_undoes_a_split_byte_for_byte(case, dtype):
    text, shapes = SPLITS[case]
    there = bound(text, shapes)
    home = WeightMap.parse(text).inverse().bind(there.layout)
    update = {"x": lora(shapes["x"], dtype=dtype)}
    update["x"].b[..., :2, :] = -0.0  # zeros have a sign, which a sum would lose
    same_bytes(apply(home, apply(there, update)), update)


def test_parts_of_a_split_have_one_rank_and_one_a():
    moved = follows(FUSED, {"x": (9, 6)}, {"x": lora((9, 6), 3)})
    assert {update.rank for update in moved.values()} == {3}
    assert len({update.a.tobytes() for update in moved.values()}) == 1


JOINS = {
    "one A": ((1, 1, 1), (0.5, 0.5, 0.5), 2),
    "two of one A": ((1, 2, 1), (0.5, 0.5, 0.5), 4),
    "an A each": ((1, 2, 3), (0.5, 0.5, 0.5), 6),
    "one A and several scales": ((1, 1, 1), (0.5, 2.0, 0.7), 2),
    "a part is missing": ((1, 1, None), (0.5, 0.5, 0.5), 2),
}


@pytest.mark.parametrize("case", JOINS)
def test_joined_rows_share_their_a_where_it_is_the_same(case):
    seeds, scales, rank = JOINS[case]
    text = "q [q i], k [k i], v [v i] <-> x [(q + k + v) i]"
    shapes = {"q": (4, 6), "k": (2, 6), "v": (3, 6)}
    updates = {
        name: LowRank(lora((4, 6), seed=seed).a, lora(shapes[name]).b, scale)
        for name, seed, scale in zip("qkv", seeds, scales, strict=True)
        if seed
    }
    assert follows(text, shapes, updates)["x"].rank == rank


def test_an_update_that_is_not_there_moves_nothing():
    shapes = {"x.0.w": (4, 6), "x.1.w": (4, 6)}
    assert apply(bound(STACK, shapes), {}) == {}
    [moved] = follows(STACK, shapes, {"x.1.w": lora((4, 6))}).values()
    assert not moved.part(0).delta().any()


def test_factors_of_several_dtypes_become_one_that_holds_them_all():
    text = "q [q i], k [k i] <-> x [(q + k) i]"
    plan = bound(text, {"q": (4, 6), "k": (2, 6)})
    updates = {"q": lora((4, 6), dtype=np.float16), "k": lora((2, 6), dtype=ml_dtypes.bfloat16)}
    moved = apply(plan, updates)["x"]
    assert moved.a.dtype == moved.b.dtype == np.float32
    assert (moved.delta()[:4] == updates["q"].delta()).all()


REFUSED = {
    "a batch axis into the matrix": (
        "x [h o i] <-> y [(h o) i]", lora((2, 3, 4)), "counts matrices on the other"),
    "a matrix axis into the batch": (
        "x [(h o) i] <-> y [h o i] where h = 2", lora((6, 4)), "counts matrices on the other"),
    "a batch axis changed for a row": (
        "x [e o i] <-> y [o e i]", lora((2, 3, 4)), "counts matrices on the other"),
    "rows and columns mixed within a stack": (
        "x [e (h o) (k i)] <-> y [e (h k) (o i)] where h = k = 2", lora((3, 4, 6)), "rows and columns mix"),
    "a matrix that becomes a vector": ("x [o i] <-> y [(o i)]", lora((2, 3)), "with two axes or more"),
    "norms in a family": (
        "x.{e} [o i] <-> y [e o i]", LowRank(np.ones((1, 3)), np.ones((2, 1)), 1.0, np.ones(2)), "do not stack"),
    "norms that get an axis": (
        "x [o i] <-> y [1 o i]", LowRank(np.ones((1, 3)), np.ones((2, 1)), 1.0, np.ones(2)), "norms are of whole rows"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_of_low_rank_on_the_other_side_is_refused(case):
    text, update, why = REFUSED[case]
    name = "x.0" if "{e}" in text else "x"
    with pytest.raises(UnsupportedError, match=why):
        apply(bound(text, {name: update.shape}), {name: update})
