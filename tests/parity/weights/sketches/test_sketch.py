"""A sketch is exact where it says equal, linear where it projects, and honest about distances."""

from __future__ import annotations

import importlib
import json

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from weighbridge.converters.common.dtypes import CODE, NUMPY
from weighbridge.parity.weights.sketches.casts import CLAMPED, cast, clamp, fingerprint
from weighbridge.parity.weights.sketches.sketch import (
    LONGEST_ROW,
    from_record,
    row_shape,
    sketch,
    to_record,
)

SHAPES = [(), (0,), (1,), (7,), (5, 3), (4, 3, 2), (2, 3, 2, 5), (1, 6, 4)]
TORCH = {"F16": torch.float16, "BF16": torch.bfloat16}
floats = arrays.arrays(
    np.float32,
    arrays.array_shapes(min_dims=0, max_dims=4, max_side=6),
    elements=st.floats(-1e6, 1e6, width=32),
)


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES)
def test_record_is_json_and_comes_back_whole(shape: tuple[int, ...]) -> None:
    before = sketch(random(*shape))
    after = from_record(json.loads(json.dumps(to_record(before))))
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("code", TORCH)
def test_cast_hash_is_the_hash_of_what_torch_casts_to(code: str) -> None:
    array = random(30, 4) * np.float32(1e-3)
    tensor = torch.from_numpy(array).to(TORCH[code]).view(torch.int16).numpy()
    assert sketch(array).hashes[code] == fingerprint(tensor)


def test_clamped_hash_is_the_hash_of_what_coremltools_writes() -> None:
    from coremltools.converters import mil
    from coremltools.converters.mil.mil.passes.pass_registry import PASS_REGISTRY

    array = np.array([1.0, 1e-12, -1e-12, 0.0, 1e-7, 6e-8, -2.9e-8, 3.1e-8], np.float32)

    @mil.Builder.program(input_specs=[mil.Builder.TensorSpec(shape=(8,))])
    def program(x):  # type: ignore[no-untyped-def]
        return mil.Builder.add(x=x, y=array, name="sum")

    PASS_REGISTRY["common::add_fp16_cast"](program)
    (operation,) = program.functions["main"].find_ops(op_type="add")
    written = operation.y.val
    assert written.dtype == np.float16
    np.testing.assert_array_equal(clamp(array), written)
    assert sketch(array).hashes[CLAMPED] == fingerprint(written)


@pytest.mark.parametrize("code", sorted(NUMPY))
def test_every_dtype_has_a_sketch(code: str) -> None:
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(NUMPY[code])
    if code in {"C64", "F8_E8M0"}:
        pytest.skip("no checkpoint here has them")
    assert CODE[array.dtype] == code
    assert sketch(array).hashes[code] == fingerprint(array)


@given(floats, st.floats(-3, 3))
def test_projections_and_rows_are_linear(array: np.ndarray, factor: float) -> None:
    array = array.astype(np.float64)
    other = np.ones_like(array)
    total = sketch(factor * array + other)
    for field in ("projections", "rows"):
        one, two = getattr(sketch(array), field), getattr(sketch(other), field)
        scale = max(1.0, float(np.abs(array).max(initial=0.0))) * max(array.size, 1)
        np.testing.assert_allclose(getattr(total, field), factor * one + two, atol=1e-12 * scale)


@pytest.mark.parametrize("shape", [(4000,), (300, 40), (20, 10, 30), (LONGEST_ROW + 5,)])
def test_projections_estimate_the_norm(shape: tuple[int, ...]) -> None:
    estimates = [
        np.mean(sketch(random(*shape, seed=seed)).projections ** 2) / np.prod(shape)
        for seed in range(8)
    ]
    assert 0.7 < np.mean(estimates) < 1.4  # 128 squares: a standard error of 12 %


@pytest.mark.parametrize("block", [64, 1 << 10, 1 << 14])
def test_sketch_does_not_depend_on_how_it_is_cut(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("weighbridge.parity.weights.sketches.sketch")
    array = random(103, 37)
    whole = sketch(array)
    monkeypatch.setattr(module, "BLOCK", block)
    cut = sketch(array)
    np.testing.assert_allclose(cut.projections, whole.projections, rtol=1e-10)
    np.testing.assert_array_equal(cut.rows, whole.rows)
    np.testing.assert_allclose(cut.moments, whole.moments, rtol=1e-10)


def test_projections_are_the_same_on_every_machine() -> None:
    # Recorded goldens are read elsewhere: these figures may never change.
    found = sketch(np.arange(15.0).reshape(3, 5) ** 2)
    assert found.rows.tolist() == PINNED_ROWS
    assert found.projections[:4].tolist() == PINNED_PROJECTIONS


PINNED_ROWS = [-20.0, -85.0, -200.0]
PINNED_PROJECTIONS = [-95.0, 955.0, 449.0, 371.0]


@given(floats)
def test_axes_of_size_one_do_not_show(array: np.ndarray) -> None:
    wide = array.reshape(1, *array.shape, 1)
    np.testing.assert_array_equal(sketch(wide).projections, sketch(array).projections)
    assert row_shape(wide.shape) == row_shape(array.shape)


def test_order_changes_hashes_and_projections_but_no_moment() -> None:
    array = random(40, 40)
    one, other = sketch(array), sketch(array[::-1].copy())
    np.testing.assert_allclose(one.moments, other.moments, rtol=1e-12)
    assert one.hashes != other.hashes
    assert not np.allclose(one.projections, other.projections)


def test_infinities_are_counted_and_left_out_of_sums() -> None:
    found = sketch(np.array([[1.0, np.inf], [np.nan, 2.0]], np.float32))
    assert found.moments.not_finite == 2
    assert np.isfinite(found.projections).all()
    assert found.moments.largest == 2.0


def test_bfloat16_overflow_is_infinite_without_a_warning() -> None:
    assert np.isinf(cast(np.array([3.4e38], np.float32), "BF16").astype(np.float32)).all()
    assert cast(np.array([3.4e38]), "BF16").dtype == ml_dtypes.bfloat16
