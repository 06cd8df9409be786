"""Blocks of ggml types and MLX's parts: the same numbers, by the account of gguf and of MLX."""

from __future__ import annotations

import gguf
import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.converters.gguf.toys import normal
from weighbridge.converters.gguf.blocks import BLOCKS, decoded, encoded, route, routes, scheme_of
from weighbridge.converters.quantization import Blocks, Scheme, quantize
from weighbridge.errors import UnsupportedError

PLAIN = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
FLOATS = {"mxfp4": "MXFP4", "nvfp4": "NVFP4"}
AFFINE = [Scheme(bits, size) for bits in (2, 3, 4, 5) for size in (32, 64, 128)]


def dequantized(rows, kind):
    return gguf.dequantize(rows, gguf.GGMLQuantizationType[kind])


def random_rows(kind, seed=0, rows=3):
    """Return bytes of KIND whose codes are any, and whose scales are numbers."""
    rng = np.random.default_rng(seed)
    record = BLOCKS[kind].record
    blocks = np.frombuffer(rng.bytes(rows * 4 * record.itemsize), record).copy()
    if blocks["d"].dtype == np.float16:
        for part in {"d", "m"} & set(record.names):
            blocks[part] = rng.normal(size=blocks.shape).astype(np.float16)
    else:
        blocks["d"] = rng.integers(100, 120, blocks["d"].shape)
    return blocks.view(np.uint8).reshape(rows, -1)


@pytest.mark.parametrize("kind", BLOCKS)
@given(seed=st.integers(0, 2**32))
def test_parts_have_the_values_that_gguf_reads(kind, seed):
    rows = random_rows(kind, seed)
    values = decoded(rows, kind).values()
    theirs = dequantized(rows, kind)
    if kind.endswith("_K"):  # gguf rounds products and sums to float32
        np.testing.assert_allclose(values, theirs, rtol=1e-6, atol=1e-5)
    else:
        np.testing.assert_allclose(values, theirs, rtol=3e-7, atol=1e-30)
        assert np.mean(values.astype(np.float32) == theirs) > 0.6


@pytest.mark.parametrize("kind", [kind for kind in BLOCKS if not kind.endswith("_K")])
@given(seed=st.integers(0, 2**32))
def test_blocks_that_became_parts_become_the_same_bytes_again(kind, seed):
    rows = random_rows(kind, seed)
    parts = decoded(rows, kind)
    assert route(parts.parts, parts.scheme, kind).exact
    assert encoded(parts, kind).tobytes() == rows.tobytes()


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_parts_are_those_that_mlx_reads(kind, tmp_path):
    stored = gguf.GGMLQuantizationType[kind]
    rows = gguf.quantize(normal(8, 128), stored)
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_tensor("up.weight", rows, raw_dtype=stored)
    for write in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{write}_to_file")()
    writer.close()
    theirs = mx.load(str(tmp_path / "x.gguf"))
    for part, array in decoded(rows, kind).parts.items():
        assert np.array_equal(array, np.array(theirs[f"up.{part}"])), part


def exact_in_half(scheme, seed, dtype=np.float16):
    made = quantize(normal(6, 256, seed=seed), scheme, np.dtype(dtype))
    return Blocks(made, scheme)


@pytest.mark.parametrize("scheme", AFFINE, ids=str)
@given(seed=st.integers(0, 100))
def test_every_affine_weight_up_to_five_bits_is_held_exactly(scheme, seed):
    weight = exact_in_half(scheme, seed)
    kind = "Q5_1" if scheme.bits == 5 else "Q4_1"
    assert kind in routes(scheme, 256)
    assert route(weight.parts, scheme, kind).exact
    rows = encoded(weight, kind)
    assert np.array_equal(decoded(rows, kind).values(), weight.values())
    np.testing.assert_allclose(dequantized(rows, kind), weight.values(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("mode", FLOATS)
def test_tiny_floats_are_held_exactly(mode):
    scheme = Scheme.of({"mode": mode})
    weight = Blocks(quantize(normal(6, 256), scheme, "F32"), scheme)
    kind = FLOATS[mode]
    assert routes(scheme, 256) == (kind,)
    assert route(weight.parts, scheme, kind).exact
    rows = encoded(weight, kind)
    assert np.array_equal(dequantized(rows, kind), weight.values())
    mine = {k: mx.array(v) for k, v in weight.parts.items()}
    theirs = mx.dequantize(mine["weight"], mine["scales"], **scheme.record, dtype=mx.float32)
    assert np.array_equal(dequantized(rows, kind), np.array(theirs))


@pytest.mark.parametrize(
    ("bits", "zero", "kind"),
    [
        (2, 1, "Q4_0"),
        (2, 2, "Q4_0"),
        (3, 4, "Q4_0"),
        (4, 8, "Q4_0"),
        (5, 16, "Q5_0"),
        (6, 32, "Q8_0"),
        (6, 5, "Q8_0"),
        (8, 128, "Q8_0"),
    ],
)
def test_codes_around_a_whole_zero_need_no_minimum(bits, zero, kind):
    scheme = Scheme(bits, 64)
    rng = np.random.default_rng(bits)
    scales = rng.normal(size=(4, 2)).astype(np.float16)
    parts = {"scales": scales, "biases": scales * np.float16(-zero)}
    weight = Blocks.of_codes(rng.integers(0, 1 << bits, (4, 128)), parts, scheme)
    exact = np.array_equal(parts["biases"].astype(float), -zero * scales.astype(float))
    assert route(weight.parts, scheme, kind).exact == exact
    if exact:
        assert np.array_equal(decoded(encoded(weight, kind), kind).values(), weight.values())


def measured(weight, kind):
    """Return how far what is stored as KIND lies from WEIGHT, in steps of each group."""
    stored = decoded(encoded(weight, kind), kind).values()
    step = np.repeat(np.abs(weight.parts["scales"].astype(float)), weight.scheme.group_size, -1)
    return np.max(np.abs(stored - weight.values()) / step)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("bits", [4, 5, 6])
def test_the_loss_is_what_the_values_show(bits, dtype):
    scheme = Scheme(bits, 64)
    weight = exact_in_half(scheme, 1, np.float32)
    tiny = {p: (a * 1e-5).astype(dtype) for p, a in weight.parts.items() if p != "weight"}
    weight = Blocks({**weight.parts, **tiny}, scheme)
    kind = routes(scheme, 256)[-1]
    said = route(weight.parts, scheme, kind)
    assert not said.exact
    assert 0 < measured(weight, kind) <= said.error * (1 + 1e-9)
    assert said.error <= 2 * measured(weight, kind)


@pytest.mark.parametrize("zeros", [(8, 8), (8, 7), (7, 8), (0, 8)])
def test_one_group_around_another_zero_rules_a_type_without_minimum_out(zeros):
    scales = np.array([[0.5, 0.25]], np.float16)
    parts = {"scales": scales, "biases": -scales * np.array([zeros], np.float16)}
    assert route(parts, Scheme(4, 64), "Q4_0").exact == (set(zeros) == {8})


def test_eight_bits_around_another_zero_are_not_held():
    weight = exact_in_half(Scheme(8, 64), 3)
    assert route(weight.parts, weight.scheme, "Q8_0").error == np.inf


def test_a_constant_group_is_held_with_its_minimum_alone():
    parts = {"scales": np.zeros((1, 1), "f2"), "biases": np.full((1, 1), 0.5, "f2")}
    assert route(parts, Scheme(4, 32), "Q4_0").error == np.inf
    assert route(parts, Scheme(4, 32), "Q4_1").exact


@pytest.mark.parametrize("number", [np.inf, np.nan, 1e6])
def test_scales_beyond_float16_are_not_held(number):
    parts = {"scales": np.full((1, 1), number, "f4"), "biases": np.zeros((1, 1), "f4")}
    assert route(parts, Scheme(4, 32), "Q4_1").error == np.inf


def test_scales_that_are_no_numbers_are_refused():
    rows = random_rows("MXFP4")
    rows[0, 0] = 255
    with pytest.raises(UnsupportedError, match="255"):
        decoded(rows, "MXFP4")
    rows = random_rows("Q8_0")
    rows[0, :2] = np.array([600.0], np.float16).view(np.uint8)
    with pytest.raises(UnsupportedError, match="float16"):
        decoded(rows, "Q8_0")


def test_types_with_groups_of_sixteen_have_no_scheme():
    assert [scheme_of(kind) for kind in ("Q6_K", "Q2_K", "Q3_K", "F16")] == [None] * 4


def test_nvfp4_needs_whole_blocks_of_sixty_four():
    assert routes(Scheme(4, 16, "nvfp4"), 96) == ()


def test_a_global_scale_is_not_held():
    parts = {"scales": np.zeros((1, 1), np.uint8), "global_scale": np.ones(1, np.float32)}
    assert route(parts, Scheme(4, 16, "nvfp4"), "NVFP4").error == np.inf
