"""What MLX packs is read at its exact value, and made by MLX itself."""

from __future__ import annotations

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest

from weighbridge.converters.common.dtypes import dtype_of
from weighbridge.converters.quantization import (
    Scheme,
    dequantize,
    layout,
    quantize,
    step,
)
from weighbridge.converters.quantization.mlx import dequantize_half
from weighbridge.converters.quantization.packing import unpack
from weighbridge.converters.quantization.rounding import round_once
from weighbridge.converters.quantization.workspace import Room
from weighbridge.errors import UnsupportedError

from .conftest import AFFINE, DTYPES, FLOATS, parts_of, to_numpy, weights

SHAPES = [(6, 128), (3, 5, 256)]  # of a linear module, of experts


def by_mlx(parts, scheme, **more):
    """Return mx.dequantize of PARTS."""
    arrays = {
        name: mx.array(it.view(np.uint16)).view(mx.bfloat16)
        if it.dtype == ml_dtypes.bfloat16
        else mx.array(it)
        for name, it in parts.items()
    }
    words, scales = arrays.pop("weight"), arrays.pop("scales")
    return to_numpy(mx.dequantize(words, scales, **arrays, **scheme.record, **more))


def exact(parts, scheme):
    """Return ``scale * code + bias`` in float64."""
    codes = unpack(parts["weight"], scheme.bits).astype(np.float64)
    scales, biases = (
        np.repeat(parts[it].astype(np.float64), scheme.group_size, -1)
        for it in ("scales", "biases")
    )
    return codes * scales, biases


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scheme", AFFINE, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_canonical_value_is_exact_and_mlx_rounds_it_twice(shape, scheme, dtype):
    parts = parts_of(weights(shape, dtype), scheme)
    products, biases = exact(parts, scheme)
    ours = dequantize(parts, scheme)
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(ours, (products + biases).astype(np.float32))
    kind = dtype_of(dtype)
    twice = products.astype(np.float32).astype(kind) + biases.astype(kind)
    np.testing.assert_array_equal(by_mlx(parts, scheme), twice)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("scheme", AFFINE, ids=str)
def test_with_16_bit_scales_the_canonical_value_is_not_rounded_at_all(scheme, dtype):
    parts = parts_of(weights((8, 256), dtype), scheme)
    np.testing.assert_array_equal(
        dequantize(parts, scheme).astype(np.float64), sum(exact(parts, scheme))
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scheme", FLOATS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_floating_point_codes_have_the_values_of_mlx(shape, scheme, dtype):
    parts = parts_of(weights(shape, dtype), scheme)
    np.testing.assert_array_equal(
        dequantize(parts, scheme), by_mlx(parts, scheme, dtype=mx.float32)
    )


@pytest.mark.parametrize("scheme", FLOATS, ids=str)
def test_every_code_with_every_scale_has_the_value_of_mlx(scheme):
    codes = np.arange(256, dtype=np.uint8)[:, None] * np.ones((1, scheme.group_size), np.uint8)
    scales = np.arange(256, dtype=np.uint8)[None].repeat(256, 0)
    words = np.tile(codes[:, : scheme.group_size * scheme.bits // 8], (1, 256)).view(np.uint32)
    parts = {"weight": words, "scales": scales}
    ours = dequantize(parts, scheme)
    np.testing.assert_array_equal(ours, by_mlx(parts, scheme, dtype=mx.float32))


def test_a_global_scale_multiplies_each_expert():
    scheme, array = (
        Scheme(4, 16, "nvfp4"),
        weights((3, 5, 64)) * mx.array([1, 30, 0.01])[:, None, None],
    )
    parts = quantize(to_numpy(array), scheme, "float32", global_scale=True)
    ours = dequantize(parts, scheme)
    for expert in range(3):
        theirs = by_mlx({n: it[expert] for n, it in parts.items()}, scheme, dtype=mx.float32)
        np.testing.assert_allclose(ours[expert], theirs, rtol=3e-7)
    np.testing.assert_allclose(ours, to_numpy(array), atol=0.2 * np.abs(array).max())


def test_a_global_scale_is_made_as_mlx_lm_makes_it():
    from mlx_lm.models.switch_layers import SwitchLinear

    layer = SwitchLinear(64, 5, 3, bias=False)
    theirs = layer.to_quantized(16, 4, "nvfp4", global_scale=True)
    ours = quantize(to_numpy(layer.weight), Scheme(4, 16, "nvfp4"), "float32", global_scale=True)
    assert set(ours) == {"weight", "scales", "global_scale"}
    for name, part in ours.items():
        np.testing.assert_array_equal(part, to_numpy(theirs[name]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scheme", AFFINE + FLOATS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_quantizing_is_mlx_s_own_and_its_layout_is_known_before(shape, scheme, dtype):
    array = weights(shape, "bfloat16")
    ours = quantize(to_numpy(array).astype(np.float32), scheme, dtype)
    theirs = parts_of(array.astype(getattr(mx, dtype)), scheme)
    headers = layout("up.weight", shape, scheme, dtype)
    assert list(ours) == list(theirs)
    for name, part in theirs.items():
        np.testing.assert_array_equal(ours[name], part)
        header = headers.pop(f"up.{name}")
        assert (header.shape, header.nbytes) == (part.shape, part.nbytes)
    assert not headers


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scheme", FLOATS, ids=str)
def test_the_dtype_of_their_scales_leaves_floating_point_weights_as_they_are(scheme, dtype):
    array = weights((6, 128), dtype)
    ours, theirs = quantize(to_numpy(array), scheme, "U8"), parts_of(array, scheme)
    for name, part in theirs.items():
        np.testing.assert_array_equal(ours[name], part)
    assert quantize(to_numpy(array).astype(np.float64), scheme, "U8")["scales"].dtype == np.uint8


@pytest.mark.parametrize("shape", [(128,), (4, 40)])
def test_a_shape_that_cannot_be_quantized_is_refused(shape):
    with pytest.raises(UnsupportedError, match="leave it dense or choose another group"):
        quantize(np.zeros(shape, np.float32), Scheme(4, 64), "float16")
    with pytest.raises(UnsupportedError, match="leave it dense or choose another group"):
        layout("w.weight", shape, Scheme(4, 64), "F16")


@pytest.mark.parametrize("scheme", AFFINE + FLOATS, ids=str)
def test_the_step_is_the_distance_of_neighbouring_values(scheme):
    parts = parts_of(weights((1, 1 << 12), "float32"), scheme)
    values = dequantize(parts, scheme).reshape(-1, scheme.group_size)
    if scheme.affine:
        spans = np.ptp(values, axis=1) / np.ptp(
            unpack(parts["weight"], scheme.bits).reshape(values.shape).astype(int), axis=1
        )
        assert step(parts, scheme) == pytest.approx(np.median(spans), rel=1e-3)
        return
    codes = parts["weight"].copy()
    codes ^= np.uint32(0x11111111 if scheme.bits == 4 else 0x01010101)  # each to a neighbour
    moved = dequantize({**parts, "weight": codes}, scheme).reshape(values.shape)
    apart = np.abs(moved - values)
    apart = np.nanmedian(apart)  # the neighbour of the largest E4M3 is NaN
    assert apart / 2 <= step(parts, scheme) <= apart * 2


def test_large_weights_are_worked_on_in_pieces(monkeypatch):
    from weighbridge.converters.quantization import mlx

    scheme, array = Scheme(3, 32), weights((7, 3, 96), "bfloat16")
    parts = parts_of(array, scheme)
    whole = dequantize(parts, scheme)
    monkeypatch.setattr(mlx, "BLOCK", 200)
    np.testing.assert_array_equal(dequantize(parts, scheme), whole)


@pytest.mark.parametrize("scheme", AFFINE, ids=str)
@pytest.mark.parametrize("size", [1e-7, 1e-5, 1e-2, 1.0, 200.0, 5e4])
def test_values_are_rounded_to_float16_as_from_float32_or_left_to_it(scheme, size):
    random = np.random.default_rng(0)
    words = random.integers(0, 2**32, (16, 128 * scheme.bits // 32), np.uint32)
    groups = random.normal(size=(2, 16, 128 // scheme.group_size)) * size
    scales, biases = np.clip([groups[0], 8 * groups[1]], -6e4, 6e4).astype(np.float16)
    parts = {"weight": words, "scales": scales, "biases": biases}
    with np.errstate(over="ignore"):
        wanted = round_once(dequantize(parts, scheme), np.dtype(np.float16))
    found = dequantize_half(parts, scheme, Room())
    if found is None:
        assert np.abs(wanted.astype(np.float32)).max() > 1e3
    else:
        np.testing.assert_array_equal(found.view(np.uint16), wanted.view(np.uint16))
    assert dequantize_half(parts | {"scales": scales.astype("f4")}, scheme, Room()) is None


@pytest.mark.parametrize("scale", [np.inf, np.nan])
def test_scales_that_are_not_finite_are_read_without_a_warning(scale):
    scheme = Scheme(4, 32)
    parts = {
        "weight": np.zeros((1, 4), np.uint32),
        "scales": np.full((1, 1), scale, np.float16),
        "biases": np.zeros((1, 1), np.float16),
    }
    assert np.isnan(dequantize(parts, scheme)).all()
    assert dequantize_half(parts, scheme, Room()) is None


def test_subnormal_numbers_are_not_used_where_the_processor_takes_them_for_zero(monkeypatch):
    """As it does in a thread of torch's after ``torch.set_flush_denormal(True)``."""
    scheme = Scheme(4, 32)
    parts = parts_of(weights((4, 64)), scheme)
    halves = {name: parts[name].astype(np.float16) for name in ("scales", "biases")}
    assert dequantize_half(parts | halves, scheme, Room()) is not None
    torch = pytest.importorskip("torch")
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor always keeps them")
    try:
        assert dequantize_half(parts | halves, scheme, Room()) is None
    finally:
        torch.set_flush_denormal(False)
