"""GPTQ and AWQ there and back, against the formulas of gptqmodel and autoawq written out here."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from weighbridge.converters.quantization import Dequantized, Scheme
from weighbridge.converters.quantization.formats.registry import read, write
from weighbridge.errors import BadInputError, UnsupportedError
from weighbridge.tests.support.quantized_formats import BY, by_gptq

from ..conftest import LLAMA, Arrays, save
from .conftest import arrays, back, canonical, mlx, opened, there, view_of

SIZES = [32, 64, 128]
CASES = [("gptq", Scheme(bits, size)) for bits in (2, 3, 4, 8) for size in SIZES]
CASES += [("awq", Scheme(4, size)) for size in SIZES]


def upright(parts, bits):
    """Return PARTS with positive scales: code Q of a negative one becomes the largest less Q."""
    turned = parts["scales"].astype(np.float64) < 0
    words = parts["weight"].reshape(*turned.shape, -1)
    flipped = np.where(turned[..., None], ~words, words).reshape(parts["weight"].shape)
    scales, biases = (parts[it].astype(np.float64) for it in ("scales", "biases"))
    return {
        "weight": flipped,
        "scales": np.abs(scales),
        "biases": np.where(turned, biases + scales * (2**bits - 1), biases),
    }


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("method", "scheme"), CASES, ids=str)
def test_whole_zero_points_go_there_and_back_exactly(method, scheme, dtype):
    parts = mlx(scheme, (64, 256), dtype, whole=True)
    assert (parts["scales"].astype(np.float32) < 0).any()
    view = view_of(parts, scheme)
    written = write(view, method)
    assert not written.losses
    exact = canonical(view, "up.weight")
    np.testing.assert_array_equal(BY[method](arrays(written.tensors), written.section), exact)
    seen = read(written.tensors, {"quantization_config": written.section})
    assert seen.section == scheme.record
    for part, array in upright(parts, scheme.bits).items():
        np.testing.assert_array_equal(seen.tensors.read(f"up.{part}").astype(array.dtype), array)
    again = Dequantized(seen.tensors, {"quantization": seen.section})
    np.testing.assert_array_equal(canonical(again, "up.weight"), exact)


@pytest.mark.parametrize(("method", "scheme"), CASES, ids=str)
def test_what_mlx_made_is_off_by_the_loss_that_is_told(method, scheme):
    parts = mlx(scheme, (64, 256))
    view = view_of(parts, scheme)
    written = write(view, method)
    made = BY[method](arrays(written.tensors), written.section)
    steps = np.repeat(np.abs(parts["scales"].astype(np.float64)), scheme.group_size, axis=1)
    worst = np.max(np.abs(made - canonical(view, "up.weight")) / steps)
    np.testing.assert_allclose(worst, written.losses.get("up.weight", 0), rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("low", [0, 1])
def test_a_zero_point_of_0_needs_version_2(low):
    scheme = Scheme(4, 32)
    parts = mlx(scheme, (32, 64))
    parts["scales"] = np.abs(parts["scales"])
    parts["biases"] = parts["scales"] * np.float16(-8)
    parts["biases"][3, 1] = -low * parts["scales"][3, 1]
    view = view_of(parts, scheme)
    written = write(view, "gptq")
    assert written.section["checkpoint_format"] == ("gptq" if low else "gptq_v2")
    made = by_gptq(arrays(written.tensors), written.section)
    np.testing.assert_array_equal(made, canonical(view, "up.weight"))


@pytest.mark.parametrize(("method", "scheme"), [CASES[7], CASES[4], CASES[13]], ids=str)
def test_any_bytes_may_be_asked_for_in_blocks_of_any_size(method, scheme, monkeypatch):
    from weighbridge.converters.quantization import mlx as blocks

    written = write(view_of(mlx(scheme, (64, 256)), scheme), method)
    seen = read(written.tensors, {"quantization_config": written.section}).tensors
    wholes = [arrays(tensors) for tensors in (written.tensors, seen)]
    monkeypatch.setattr(blocks, "BLOCK", 700)
    for tensors, whole in zip((written.tensors, seen), wholes, strict=True):
        for name, array in whole.items():
            for start, stop in ((0, None), (1, 700), (333, 2222), (5, 5)):
                found = b"".join(map(bytes, tensors.stream(name, start, stop)))
                assert found == array.tobytes()[start:stop], name


def stored(scheme=Scheme(4, 64), **changes):
    written = write(view_of(mlx(scheme, (64, 256)), scheme), "gptq")
    tensors = arrays(written.tensors) | {f"up.{it}": array for it, array in changes.items()}
    return {name: it for name, it in tensors.items() if it is not None}, written.section


def seen_as(tensors, section, **changes):
    return read(Arrays(tensors), {"quantization_config": section | changes})


def test_columns_that_lie_mixed_are_dense_at_their_exact_values():
    order = np.random.default_rng(0).permutation(np.arange(256, dtype=np.int32) // 64)
    tensors, section = stored(g_idx=order)
    seen = seen_as(tensors, section, desc_act=True)
    assert seen.section is None
    assert "1 weights are dense in float32, up first" in seen.notes[1]
    np.testing.assert_array_equal(seen.tensors.read("up.weight"), by_gptq(tensors, section))


def test_groups_that_change_places_as_a_whole_stay_codes():
    order = np.repeat(np.int32([2, 0, 3, 1, 1, 2, 0, 3]), 32)
    tensors, section = stored(g_idx=order)
    seen = seen_as(tensors, section, desc_act=True)
    assert seen.section == Scheme(4, 32).record
    view = Dequantized(seen.tensors, {"quantization": seen.section})
    np.testing.assert_array_equal(canonical(view, "up.weight"), by_gptq(tensors, section))


def test_one_scale_for_each_output_is_several_groups_of_the_same():
    tensors, section = stored(
        scales=np.float16(np.arange(1, 65))[None],
        qzeros=np.full((1, 8), 0x77777777, np.int32),
        g_idx=np.zeros(256, np.int32),
    )
    seen = seen_as(tensors, section, group_size=-1, sym=True)
    assert seen.section == Scheme(4, 128).record
    assert seen.tensors.headers["up.biases"].dtype == "F16"
    view = Dequantized(seen.tensors, {"quantization": seen.section})
    np.testing.assert_array_equal(canonical(view, "up.weight"), by_gptq(tensors, section))


def test_order_may_be_missing():
    tensors, section = stored()
    whole = by_gptq(tensors, section)
    del tensors["up.g_idx"]
    seen = seen_as(tensors, section)
    view = Dequantized(seen.tensors, {"quantization": seen.section})
    np.testing.assert_array_equal(canonical(view, "up.weight"), whole)


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_a_directory_comes_back_with_head_and_embeddings_dense(method, tmp_path):
    save(tmp_path / "mlx", LLAMA, "float16", group_size=32, bits=4)
    parts = opened(tmp_path / "mlx")
    written = there(parts, method, tmp_path / "there", LLAMA)
    assert max(written.losses.values()) < 0.01
    again = back(tmp_path / "there")
    gone = set(parts.schemes) - set(again.schemes)
    assert gone == {"model.embed_tokens.weight", "lm_head.weight"}
    for name in gone:
        np.testing.assert_array_equal(canonical(parts, name), canonical(again, name))


def test_scales_beyond_float16_keep_their_dtype_and_it_is_told():
    scheme = Scheme(4, 32)
    parts = mlx(scheme, (32, 64), "bfloat16", whole=True)
    parts["scales"] = (parts["scales"].astype(np.float32) * 2.0**-20).astype(ml_dtypes.bfloat16)
    parts["biases"] = parts["biases"] * np.float32(2.0**-20)
    view = view_of(parts, scheme)
    written = write(view, "gptq")
    assert written.tensors.headers["up.scales"].dtype == "BF16"
    assert "scales are bfloat16" in written.notes[0]
    made = by_gptq(arrays(written.tensors), written.section)
    np.testing.assert_array_equal(made, canonical(view, "up.weight"))


@pytest.mark.parametrize(
    ("tensors", "section", "says"),
    [
        ({"scales": None}, {}, "up.scales is missing"),
        ({"qzeros": None}, {}, "up.qzeros is missing"),
        ({"qweight": None}, {}, r"no tensor is called \*.qweight"),
        ({"g_idx": np.zeros(255, np.int32)}, {}, r"up.g_idx is I32\[255\], expected shape \[256\]"),
        ({"g_idx": np.full(256, 9, np.int32)}, {}, "up.g_idx names group 9; there are 4"),
        ({"scales": np.zeros((3, 64), np.float16)}, {}, r"expected shape \[4, 64\]"),
        ({"qzeros": np.zeros((4, 7), np.int32)}, {}, r"expected shape \[4, 8\]"),
        ({"scales": np.zeros((4, 64), np.int32)}, {}, "expected I32 and floats"),
        ({}, {"group_size": 128}, r"up.scales is F16\[4, 64\], expected shape \[2, 64\]"),
        ({}, {"group_size": 0}, "group_size is 0, expected a whole number"),
        ({}, {"bits": 8}, r"expected shape"),
        ({"qzeros": np.zeros((4, 8))}, {}, r"up.qzeros is F64\[4, 8\], expected I32"),
        ({"g_idx": np.zeros(256, np.float32)}, {}, r"up.g_idx is F32\[256\], expected I32"),
        ({}, {"sym": "yes"}, "sym is 'yes', expected true or false"),
        ({}, {"desc_act": 1}, "desc_act is 1, expected true or false"),
        ({}, {"sym": True}, r"up: config.json says sym; up.qzeros has zero points of \d+, not 8"),
    ],
)
def test_bad_input_is_one_line_that_names_the_tensor_and_the_value(tensors, section, says):
    with pytest.raises(BadInputError, match=says):
        seen_as(*stored(**tensors), **section)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"version": "gemv"}, "awq: version 'gemv' is unknown; known is 'gemm'"),
        ({"bits": 8}, "awq: bits is 8; known is 4"),
        ({"zero_point": False}, "awq: zero_point is False; known are weights with zero points"),
        ({"zero_point": "yes"}, "awq: zero_point is 'yes'; known are weights with zero points"),
    ],
)
def test_another_layout_of_awq_is_refused_by_what_is_other(changes, says):
    written = write(view_of(mlx(Scheme(4, 64), (64, 256)), Scheme(4, 64)), "awq")
    with pytest.raises(UnsupportedError, match=says):
        seen_as(arrays(written.tensors), written.section, **changes)


@pytest.mark.parametrize("changes", [{"checkpoint_format": "marlin"}, {"bits": 5}])
def test_another_layout_is_refused_by_name(changes):
    with pytest.raises(UnsupportedError, match="is unknown; known"):
        seen_as(*stored(), **changes)
