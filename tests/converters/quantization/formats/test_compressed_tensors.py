"""compressed-tensors there and back, against its own decompression written out here."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.converters.quantization import Blocks, Dequantized, Scheme
from weighbridge.converters.quantization.formats.registry import read, write
from weighbridge.converters.quantization.mlx import each_block
from weighbridge.errors import BadInputError, UnsupportedError
from weighbridge.tests.support.quantized_formats import by_compressed_tensors

from ..conftest import AFFINE, DTYPES, FLOATS, LLAMA, Arrays, save
from .conftest import arrays, back, canonical, loaded, mlx, opened, there, view_of

METHOD = "compressed-tensors"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scheme", AFFINE, ids=str)
def test_whole_zero_points_go_there_and_back_exactly(scheme, dtype):
    parts = mlx(scheme, dtype=dtype, whole=True)
    view = view_of(parts, scheme)
    written = write(view, METHOD)
    assert not written.losses or dtype == "float32"  # zero times scale may take more digits
    assert max(written.losses.values(), default=0) < 1e-4
    [group] = written.section["config_groups"].values()
    exact = by_compressed_tensors(arrays(written.tensors), written.section)
    values = canonical(view, "up.weight")
    near = np.abs(values).max() * 2**-21 if dtype == "float32" else 0
    np.testing.assert_allclose(exact, values, rtol=0, atol=near)
    seen = read(written.tensors, {"quantization_config": written.section})
    assert seen.section == scheme.record
    for part, array in parts.items():
        again = seen.tensors.read(f"up.{part}")
        wide = part == "biases" and not group["weights"]["symmetric"]
        assert again.dtype == (
            np.float32 if wide else parts["scales"].dtype if part != "weight" else array.dtype
        )
        if part != "biases" or dtype != "float32":
            np.testing.assert_array_equal(again.astype(np.float32), array.astype(np.float32))


@pytest.mark.parametrize("scheme", FLOATS, ids=str)
def test_floating_point_codes_go_there_and_back_byte_for_byte(scheme):
    parts = mlx(scheme)
    view = view_of(parts, scheme)
    written = write(view, METHOD)
    exact = by_compressed_tensors(arrays(written.tensors), written.section)
    np.testing.assert_array_equal(exact, canonical(view, "up.weight"))
    seen = read(written.tensors, {"quantization_config": written.section})
    assert seen.section == scheme.record
    for part, array in parts.items():
        assert seen.tensors.read(f"up.{part}").tobytes() == array.tobytes()


@pytest.mark.parametrize("scheme", AFFINE, ids=str)
def test_what_mlx_made_is_off_by_the_loss_that_is_told(scheme):
    parts = mlx(scheme)
    view = view_of(parts, scheme)
    written = write(view, METHOD)
    made = by_compressed_tensors(arrays(written.tensors), written.section)
    steps = np.repeat(np.abs(parts["scales"].astype(np.float64)), scheme.group_size, axis=1)
    worst = np.max(np.abs(made - canonical(view, "up.weight")) / steps)
    np.testing.assert_allclose(worst, written.losses.get("up.weight", 0), rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("rows", [1, 31, 33, 40, 100])
@pytest.mark.parametrize("bits", [3, 4, 8])
def test_any_number_of_rows_is_packed_down(rows, bits):
    scheme = Scheme(bits, 32)
    view = view_of(mlx(scheme, (rows, 64), whole=True), scheme)
    written = write(view, METHOD)
    exact = by_compressed_tensors(arrays(written.tensors), written.section)
    np.testing.assert_array_equal(exact, canonical(view, "up.weight"))


@given(st.sampled_from([2, 3, 4, 6]), st.integers(0, 4000), st.integers(0, 4000))
def test_any_bytes_may_be_asked_for_in_blocks_of_any_size(bits, start, stop):
    scheme = Scheme(bits, 32)
    written = write(view_of(mlx(scheme, (100, 64), whole=True), scheme), METHOD)
    seen = read(written.tensors, {"quantization_config": written.section}).tensors
    for tensors in (written.tensors, seen):
        for name in tensors.headers:
            whole = tensors.read(name).tobytes()
            assert b"".join(map(bytes, tensors.stream(name, start, stop))) == whole[start:stop]


def test_small_blocks_make_the_same(monkeypatch):
    from weighbridge.converters.quantization import mlx as blocks

    scheme = Scheme(4, 32)
    written = write(view_of(mlx(scheme, (100, 64)), scheme), METHOD)
    before = {name: it.tobytes() for name, it in arrays(written.tensors).items()}
    monkeypatch.setattr(blocks, "BLOCK", 200)
    assert {name: it.tobytes() for name, it in arrays(written.tensors).items()} == before
    assert list(each_block(slice(2, 9), 64)) == [slice(2, 5), slice(5, 8), slice(8, 9)]


def test_symmetric_weights_are_written_without_zero_points():
    scheme = Scheme(4, 64)
    parts = mlx(scheme)
    parts["biases"] = parts["scales"] * np.float16(-8)
    written = write(view_of(parts, scheme), METHOD)
    assert written.section["config_groups"]["group_0"]["weights"]["symmetric"]
    assert "up.weight_zero_point" not in written.tensors.headers
    seen = read(written.tensors, {"quantization_config": written.section})
    for part, array in parts.items():
        assert seen.tensors.read(f"up.{part}").tobytes() == array.tobytes()


MIXED = {
    "model.layers.0.mlp.up_proj": {"group_size": 32, "bits": 8},
    "model.layers.1.mlp.up_proj": {"group_size": 32, "bits": 4, "mode": "mxfp4"},
    "model.layers.0.mlp.gate_proj": {"group_size": 32, "bits": 8, "mode": "mxfp8"},
    "model.layers.1.mlp.gate_proj": {"group_size": 16, "bits": 4, "mode": "nvfp4"},
    "model.layers.0.self_attn.q_proj": False,
}


def test_a_mixed_model_comes_back_module_by_module(tmp_path):
    save(
        tmp_path / "mlx", LLAMA, "float16", group_size=64, bits=6,
        predicate=lambda path, _: MIXED.get(path, True),
    )  # fmt: skip
    parts = opened(tmp_path / "mlx")
    written = there(parts, METHOD, tmp_path / "ct", LLAMA)
    again = back(tmp_path / "ct")
    assert written.section["format"] == "mixed-precision"
    assert set(parts.schemes) - set(again.schemes) == {"model.embed_tokens.weight"}
    for name in parts.headers:
        assert parts.schemes.get(name) == again.schemes.get(name) or "embed" in name
        step = written.losses.get(name, 0) * 1.0001
        if name in parts.schemes and step:
            scales = np.abs(parts.parts(name)["scales"].astype(np.float64))
            step = step * np.repeat(scales, parts.schemes[name].group_size, axis=-1)
        assert np.all(np.abs(canonical(parts, name) - canonical(again, name)) <= step)


@pytest.mark.filterwarnings("ignore:You passed `quantization_config`")
@pytest.mark.parametrize("bits", [3, 4, 8])
def test_transformers_with_the_library_dequantizes_what_is_written(bits, tmp_path):
    pytest.importorskip("compressed_tensors")
    from transformers import CompressedTensorsConfig

    save(tmp_path / "mlx", LLAMA, "float16", group_size=32, bits=bits)
    parts = opened(tmp_path / "mlx")
    there(parts, METHOD, tmp_path / "ct", LLAMA)
    again = back(tmp_path / "ct")
    _, state = loaded(tmp_path / "ct", quantization_config=CompressedTensorsConfig(dequantize=True))
    assert set(state) == set(again.headers)
    for name, array in state.items():  # the library multiplies in the dtype of the scales
        expected = again.read(name).astype(np.float32)
        np.testing.assert_allclose(array, expected, rtol=2**-10)


@pytest.mark.parametrize("scheme", AFFINE + FLOATS, ids=str)
def test_the_library_decompresses_as_is_written_out_here(scheme):
    pytest.importorskip("compressed_tensors")
    import torch
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig

    written = write(view_of(mlx(scheme, (40, 256), "float32"), scheme), METHOD)
    [group] = QuantizationConfig.model_validate(written.section).config_groups.values()
    tensors = arrays(written.tensors)
    state = {
        name.removeprefix("up."): torch.from_numpy(array.view(np.uint8)).view(torch.float8_e4m3fn)
        if array.dtype == ml_dtypes.float8_e4m3fn
        else torch.from_numpy(array)
        for name, array in tensors.items()
    }
    made = BaseCompressor.get_value_from_registry(group.format).decompress(state, group)["weight"]
    expected = by_compressed_tensors(tensors, written.section)
    digits = 2**-20 if scheme.affine else 2**-7  # bfloat16 in the library
    np.testing.assert_allclose(made.float(), expected, rtol=digits, atol=1e-6)


def stored(**changes):
    scheme = Scheme(4, 32)
    tensors = arrays(write(view_of(mlx(scheme, (40, 64)), scheme), METHOD).tensors)
    changed = tensors | {f"up.{ending}": array for ending, array in changes.items()}
    return Arrays({name: array for name, array in changed.items() if array is not None})


SAYS = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": 32}


def section(**changes):
    group = {"targets": ["Linear"], "weights": SAYS | changes}
    return {"quantization_config": {"quant_method": METHOD, "config_groups": {"group_0": group}}}


@pytest.mark.parametrize(
    ("tensors", "says", "message"),
    [
        ({"weight_scale": None}, {}, r"no tensor is called \*.weight_scale"),
        ({"weight_packed": None}, {}, "up.weight is missing"),
        ({"weight_zero_point": None}, {}, "up.weight_zero_point is missing"),
        ({"weight_shape": None}, {}, "up.weight_shape is missing"),
        ({"weight_shape": np.array([40, 72])}, {}, r"up.weight_packed is I32\[40, 8\], expected"),
        ({"weight_scale": np.zeros((40, 3), np.float16)}, {}, "no groups of a weight"),
        ({"weight_scale": np.zeros((40, 2), np.int32)}, {}, "expected floats"),
        ({"weight_scale": np.zeros((40, 1), np.float16)}, {}, "groups of 32; stored are 64"),
        ({"weight_zero_point": np.zeros((40, 2), np.int32)}, {}, r"expected shape \[5, 2\]"),
        (
            {"weight_zero_point": np.zeros((40, 1), np.int8)},
            {},
            r"I8\[40, 1\], expected shape \[40, 2\]",
        ),
        ({"weight_scale": np.zeros((3, 2), np.float16)}, {}, r"expected shape \[40, 2\]"),
        ({}, {"num_bits": 8}, r"up.weight_packed is I32\[40, 8\], expected shape \[40, 16\]"),
        ({}, {"type": "float"}, "says 4 bits of type 'float'; stored is I32"),
        ({}, {"group_size": 64}, "says groups of 64; stored are 32"),
        (
            {},
            {"strategy": "channel"},
            "up: config.json says 'channel'; up.weight_scale has 2 groups",
        ),
        ({}, {"strategy": "other"}, "up: config.json says strategy 'other'; known are"),
        ({}, {"dynamic": True}, "up: config.json says dynamic is True; up.weight_scale is stored"),
        (
            {},
            {"symmetric": True},
            "says symmetric; up.weight_zero_point has others than the middle",
        ),
    ],
)
def test_bad_input_is_one_line_that_names_the_tensor_and_the_value(tensors, says, message):
    with pytest.raises(BadInputError, match=message):
        read(stored(**tensors), section(**says))


def test_zero_points_in_the_middle_are_symmetric():
    middle = np.zeros((40, 2), np.int8)
    tensors = read(stored(weight_zero_point=middle), section(symmetric=True)).tensors
    biases, scales = tensors.read("up.biases"), tensors.read("up.scales")
    np.testing.assert_array_equal(biases, scales * np.float32(-8))


@pytest.mark.parametrize("other", [{"num_bits": 8}, {}])
@pytest.mark.parametrize("targets", [["Linear"], ["up"], ["Conv2d", "up"]])
def test_two_groups_that_say_otherwise_of_a_layer_are_refused(targets, other):
    config = section()
    groups = config["quantization_config"]["config_groups"]
    groups["group_0"]["targets"] = targets
    groups["group_1"] = {"targets": targets[-1:], "weights": SAYS | other}
    if not other:
        read(stored(), config)
        return
    with pytest.raises(BadInputError, match=f"{targets[-1]!r} is a target of group_0 and group_1"):
        read(stored(), config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"format": "int-quantized"},
            "config.json says format 'int-quantized'; stored is up.weight_packed",
        ),
        ({"format": 5}, "config.json: format is 5, expected a string"),
        ({"targets": ["down"]}, "up is quantized and no group of config.json names it"),
    ],
)
def test_what_a_group_says_and_its_tensors_deny_is_refused(changes, message):
    config = section()
    config["quantization_config"]["config_groups"]["group_0"] |= changes
    with pytest.raises(BadInputError, match=message):
        read(stored(), config)


@pytest.mark.parametrize("path", ["up", "re:.*u"])
def test_a_quantized_layer_that_the_config_ignores_is_refused(path):
    config = section()
    config["quantization_config"]["ignore"] = ["lm_head", path]
    with pytest.raises(BadInputError, match=r"up: config.json has it under `ignore`; stored is"):
        read(stored(), config)


def test_columns_in_another_order_are_refused():
    order = np.arange(64, dtype=np.int32)[::-1] // 32
    with pytest.raises(UnsupportedError, match="weight_g_idx puts columns into groups in another"):
        read(stored(weight_g_idx=order.astype(np.int32)), section())


def plain(says, **tensors):
    tensors = {f"up.{ending}": array for ending, array in tensors.items()}
    return read(Arrays(tensors), section(**says))


@pytest.mark.parametrize("scales", [(40, 1), (40, 2), (1,)])
def test_bytes_of_integers_become_codes_of_8_bits(scales):
    random = np.random.default_rng(0)
    weight = random.integers(-128, 128, (40, 256), dtype=np.int8)
    scale = np.abs(random.standard_normal(scales)).astype(ml_dtypes.bfloat16)
    how = {1: ("channel", None), 2: ("group", 128)}[scales[-1]]
    says = dict(zip(("strategy", "group_size"), how, strict=True))
    says |= {"num_bits": 8, "symmetric": True}
    seen = plain(says, weight=weight, weight_scale=scale)
    assert seen.section == Scheme(8, 128).record
    view = Dequantized(seen.tensors, {"quantization": seen.section})
    wide = np.broadcast_to(scale.astype(np.float64).reshape(-1, scales[-1]), (40, scales[-1]))
    expected = weight * np.repeat(wide, 256 // scales[-1], axis=1)
    np.testing.assert_array_equal(canonical(view, "up.weight"), expected)


@pytest.mark.parametrize("bits", [4, 8])
def test_zero_points_of_a_byte_each_are_signed(bits):
    random = np.random.default_rng(0)
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1)
    weight = random.integers(low, high, (40, 64), dtype=np.int8)
    zeros = random.integers(low, high, (40, 2), dtype=np.int8)
    scale = random.random((40, 2)).astype(np.float16)
    says = {"num_bits": bits, "group_size": 32}
    seen = plain(says, weight=weight, weight_scale=scale, weight_zero_point=zeros)
    view = Dequantized(seen.tensors, {"quantization": seen.section})
    apart = weight.astype(np.float64) - np.repeat(zeros.astype(np.float64), 32, axis=1)
    expected = apart * np.repeat(scale.astype(np.float64), 32, axis=1)
    np.testing.assert_array_equal(canonical(view, "up.weight"), expected)


def test_groups_that_mlx_has_not_are_dense():
    random = np.random.default_rng(0)
    weight = random.integers(-128, 128, (40, 48), dtype=np.int8)
    scale = random.standard_normal((40, 3)).astype(np.float16)
    seen = plain(
        {"num_bits": 8, "symmetric": True, "group_size": 16}, weight=weight, weight_scale=scale
    )
    assert seen.section is None
    assert "dense in float32, up first" in seen.notes[0]
    expected = weight * np.repeat(scale.astype(np.float64), 16, axis=1)
    np.testing.assert_array_equal(seen.tensors.read("up.weight"), expected)


def test_fp8_with_float_scales_is_dense():
    random = np.random.default_rng(0)
    weight = random.standard_normal((40, 64)).astype(ml_dtypes.float8_e4m3fn)
    scale = random.standard_normal((40, 1)).astype(ml_dtypes.bfloat16)
    seen = plain({"num_bits": 8, "type": "float"}, weight=weight, weight_scale=scale)
    assert seen.section is None
    expected = weight.astype(np.float64) * scale.astype(np.float64)
    np.testing.assert_array_equal(seen.tensors.read("up.weight"), expected)


def test_a_scale_of_a_whole_nvfp4_tensor_makes_it_dense():
    scheme = Scheme(4, 16, "nvfp4")
    view = view_of(mlx(scheme), scheme)
    written = write(view, METHOD)
    tensors = arrays(written.tensors) | {"up.weight_global_scale": np.float32([3.0])}
    seen = read(Arrays(tensors), {"quantization_config": written.section})
    assert seen.section is None
    expected = (canonical(view, "up.weight") / 3.0).astype(np.float32)
    np.testing.assert_array_equal(seen.tensors.read("up.weight"), expected)


def test_the_values_are_those_of_the_parts_that_are_written():
    """The reader of this program and the one written out above agree on a weight of MLX."""
    scheme = Scheme(5, 64)
    view = view_of(mlx(scheme, seed=3), scheme)
    written = write(view, METHOD)
    seen = read(written.tensors, {"quantization_config": written.section})
    again = Dequantized(seen.tensors, {"quantization": seen.section})
    blocks = Blocks(again.parts("up.weight"), scheme)
    np.testing.assert_array_equal(
        blocks.values(), by_compressed_tensors(arrays(written.tensors), written.section)
    )
