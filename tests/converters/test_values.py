"""Low-rank updates keep the change that they make, whatever form they are brought into."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from weighbridge.converters.values import LowRank, stack, widest, with_scale
from weighbridge.errors import MismatchError, UnsupportedError

DTYPES = {
    name: np.dtype(getattr(ml_dtypes, name, name))
    for name in ("float16", "bfloat16", "float32", "float64")
}
SHAPES = [((), 5, 3, 2), ((), 4, 4, 4), ((3,), 5, 3, 2), ((2, 3), 2, 6, 1), ((2,), 3, 3, 3)]


def lora(lead, out, into, rank, scale=0.7, dtype="float32", *, seed=0):
    normal = np.random.default_rng(seed).normal
    a = normal(size=(*lead, rank, into)).astype(DTYPES[dtype])
    return LowRank(a, normal(size=(*lead, out, rank)).astype(DTYPES[dtype]), scale)


def eighths(*sizes):
    """Return such an update whose products are exact, in whatever order a processor sums them."""
    drawn = lora(*sizes)
    return replace(drawn, a=np.rint(drawn.a * 8) / 8, b=np.rint(drawn.b * 8) / 8, scale=0.5)


@pytest.mark.parametrize("sizes", SHAPES)
def test_the_change_is_that_of_each_matrix(sizes):
    update = eighths(*sizes)
    lead, out, into, _ = sizes
    assert update.shape == update.delta().shape == (*lead, out, into)
    for index in np.ndindex(*lead):
        part = update.part(index)
        assert np.array_equal(part.delta(), update.delta()[index])
        assert np.array_equal(part.rows(slice(1, 2)).delta(), update.delta()[index][1:2])


@pytest.mark.parametrize("sizes", SHAPES)
def test_transposing_twice_is_nothing_and_once_transposes_the_change(sizes):
    update = lora(*sizes)
    turned = update.transposed()
    assert turned.rank == update.rank
    np.testing.assert_allclose(turned.delta(), np.swapaxes(update.delta(), -1, -2), rtol=1e-12)
    again = turned.transposed()
    assert (again.a.tobytes(), again.b.tobytes()) == (update.a.tobytes(), update.b.tobytes())


def test_dora_is_neither_transposed_nor_stacked():
    update = LowRank(np.ones((1, 3)), np.ones((2, 1)), 1.0, np.ones(2))
    with pytest.raises(UnsupportedError, match="a transposed weight has columns there"):
        update.transposed()
    with pytest.raises(UnsupportedError, match="do not stack"):
        stack([update, update])


@pytest.mark.parametrize("sizes", SHAPES)
@pytest.mark.parametrize("more", [0, 1, 5])
def test_padding_keeps_the_change_and_the_factors(sizes, more):
    update = lora(*sizes)
    padded = update.padded(update.rank + more)
    assert padded.rank == update.rank + more
    np.testing.assert_allclose(padded.delta(), update.delta(), rtol=1e-12, atol=1e-15)
    assert padded.a[..., : update.rank, :].tobytes() == update.a.tobytes()
    assert padded.b[..., : update.rank].tobytes() == update.b.tobytes()


def test_a_rank_is_never_cut():
    with pytest.raises(ValueError, match="rank 2 cannot be padded to 1"):
        lora((), 5, 3, 2).padded(1)


@pytest.mark.parametrize("dtype", DTYPES)
@given(st.integers(-6, 6), st.sampled_from([0.7, 3.0, -2.0]))
def test_a_ratio_of_a_power_of_two_is_exact_and_goes_back(dtype, power, scale):
    update = lora((), 5, 3, 2, scale, dtype)
    moved = with_scale(update, scale * 2.0**power)
    assert moved.b.dtype == update.b.dtype
    assert (moved.delta() == update.delta()).all()
    assert with_scale(moved, scale).b.tobytes() == update.b.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@given(st.floats(0.01, 100), st.floats(0.01, 100))
def test_another_scale_costs_one_rounding_of_32_bits_at_most(dtype, old, new):
    update = lora((), 5, 3, 2, old, dtype)
    moved = with_scale(update, new)
    assert moved.scale == new
    assert moved.a is update.a
    exact = update.b.astype(np.float64) * (old / new)
    assert np.abs(moved.b.astype(np.float64) / exact - 1).max() <= 2.0**-24 + 2.0**-50
    assume(old != new)
    if moved.b.dtype != update.b.dtype:
        assert moved.b.dtype == np.float32


def test_a_power_of_two_that_would_underflow_is_kept_in_32_bits():
    update = LowRank(np.ones((1, 2)), np.full((2, 1), 2.0**-24, np.float16), 1.0)
    moved = with_scale(update, 2.0)
    assert moved.b.dtype == np.float32
    assert (moved.delta() == update.delta()).all()


def test_what_no_32_bits_hold_is_refused():
    with pytest.raises(UnsupportedError, match="has no form with scale"):
        with_scale(lora((), 5, 3, 2, 1.0), 1e-300)


@given(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from(list(DTYPES))), min_size=1, max_size=5)
)
def test_a_stack_has_the_updates_as_its_parts(members):
    updates = [
        lora((), 5, 3, rank, 0.5, dtype, seed=at) for at, (rank, dtype) in enumerate(members)
    ]
    whole = stack(updates)
    assert whole.shape == (len(updates), 5, 3)
    for at, update in enumerate(updates):
        part = whole.part(at)
        assert np.array_equal(part.delta(), update.padded(whole.rank).delta())
        assert (part.a[: update.rank].astype(update.a.dtype) == update.a).all()


def test_a_stack_of_updates_with_leading_axes_has_one_more():
    whole = stack([lora((2,), 5, 3, 2, seed=1), lora((2,), 5, 3, 1, seed=2)])
    assert whole.shape == (2, 2, 5, 3)


def test_a_stack_of_several_scales_has_the_first_one():
    updates = [lora((), 5, 3, 2, scale, "bfloat16") for scale in (0.5, 2.0, 0.7)]
    whole = stack(updates)
    assert whole.scale == 0.5
    assert whole.b.dtype == np.float32
    assert [x.tobytes() for x in whole.a] == [x.a.tobytes() for x in updates]
    for at, update in enumerate(updates):
        np.testing.assert_allclose(whole.part(at).delta(), update.delta(), rtol=1e-6, atol=1e-9)


def test_updates_of_other_shapes_do_not_stack():
    with pytest.raises(MismatchError, match=r"another is of shape \[5, 4\]"):
        stack([lora((), 5, 3, 2), lora((), 5, 4, 2)])


@given(st.lists(st.sampled_from(list(DTYPES)), min_size=1, max_size=4))
def test_the_widest_dtype_holds_the_numbers_of_all(chosen):
    found = widest(DTYPES[name] for name in chosen)
    for name in chosen:
        info = ml_dtypes.finfo(DTYPES[name])
        edge = np.array([1 + float(info.eps), float(info.max), float(info.smallest_subnormal)])
        assert (edge.astype(found).astype(np.float64) == edge).all()


@pytest.mark.parametrize("sizes", SHAPES)
def test_what_is_applied_is_the_change(sizes):
    update = lora(*sizes)
    base = np.random.default_rng(5).normal(size=update.shape)
    assert np.array_equal(update.applied_to(base), base + update.delta())
