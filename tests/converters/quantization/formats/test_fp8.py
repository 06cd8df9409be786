"""fp8 with scales for blocks: powers of two are mxfp8, others dense."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from weighbridge.converters.quantization import Dequantized, Scheme
from weighbridge.converters.quantization.formats.registry import read, write
from weighbridge.errors import BadInputError, UnsupportedError

from ..conftest import LLAMA, Arrays, save
from .conftest import arrays, back, canonical, loaded, mlx, opened, there, view_of

SCHEME = Scheme(8, 32, "mxfp8")
SECTION = {"quant_method": "fp8", "weight_block_size": [128, 128]}
E8M0 = ml_dtypes.float8_e8m0fnu


def seen_as(tensors, **changes):
    return read(Arrays(tensors), {"quantization_config": SECTION | changes})


@pytest.mark.filterwarnings("ignore")  # of the graphics card that is not there
def test_transformers_loads_every_weight_at_its_canonical_value(tmp_path):
    save(tmp_path / "mlx", LLAMA, **SCHEME.record)
    parts = opened(tmp_path / "mlx")
    there(parts, "fp8", tmp_path / "there", LLAMA)
    _, state = loaded(tmp_path / "there")
    assert set(state) == set(parts.headers)
    for name, array in state.items():
        assert array.tobytes() == parts.read(name).astype(np.float32).tobytes(), name
    again = back(tmp_path / "there")
    for name in again.raw.headers:
        if name in parts.raw.headers and "embed" not in name:
            assert again.raw.read(name).tobytes() == parts.raw.read(name).tobytes()


def weight(shape, seed=0):
    random = np.random.default_rng(seed)
    return random.standard_normal(shape).astype(ml_dtypes.float8_e4m3fn)


def spread(scales, shape, block):
    wide = np.kron(scales.astype(np.float64), np.ones((*[1] * (len(shape) - 2), *block)))
    return wide[..., : shape[-2], : shape[-1]]


@pytest.mark.parametrize("kind", [E8M0, np.uint8, np.float32])
@pytest.mark.parametrize("shape", [(256, 256), (130, 320), (3, 128, 256), (2, 130, 64)])
def test_scales_that_are_powers_of_two_make_mxfp8(shape, kind):
    grid = (*shape[:-2], -(-shape[-2] // 128), -(-shape[-1] // 128))
    powers = np.random.default_rng(1).integers(-9, 9, grid)
    stored = (powers + 127).astype(np.uint8)
    scales = stored if kind is np.uint8 else stored.view(E8M0).astype(kind)
    tensors = {"up.weight": weight(shape), "up.weight_scale_inv": scales}
    seen = seen_as(tensors, scale_fmt="ue8m0")
    assert seen.section == SCHEME.record
    view = Dequantized(seen.tensors, {"quantization": seen.section})
    expected = tensors["up.weight"].astype(np.float64) * spread(2.0**powers, shape, (128, 128))
    np.testing.assert_array_equal(canonical(view, "up.weight"), expected)


@pytest.mark.parametrize("shape", [(256, 256), (130, 320), (3, 128, 256)])
def test_other_scales_make_it_dense(shape):
    grid = (*shape[:-2], -(-shape[-2] // 128), -(-shape[-1] // 128))
    scales = np.random.default_rng(1).standard_normal(grid).astype(np.float32)
    tensors = {"up.weight": weight(shape), "up.weight_scale_inv": scales}
    seen = seen_as(tensors | {"up.activation_scale": np.ones(1, np.float32)})
    assert seen.section is None
    assert set(seen.tensors.headers) == {"up.weight"}
    assert "activations is left out" in seen.notes[0]
    assert "1 weights are dense in float32, up.weight first" in seen.notes[1]
    expected = tensors["up.weight"].astype(np.float64) * spread(scales, shape, (128, 128))
    np.testing.assert_array_equal(seen.tensors.read("up.weight"), expected.astype(np.float32))


@pytest.mark.parametrize("scales", [(1,), (64, 1)])
def test_without_blocks_a_weight_or_a_row_has_a_scale(scales):
    random = np.random.default_rng(1).standard_normal(scales).astype(np.float32)
    seen = seen_as(
        {"up.weight": weight((64, 96)), "up.weight_scale": random}, weight_block_size=None
    )
    expected = (weight((64, 96)).astype(np.float64) * random).astype(np.float32)
    np.testing.assert_array_equal(seen.tensors.read("up.weight"), expected)


def test_experts_in_four_bits_are_mxfp4():
    scheme = Scheme(4, 32, "mxfp4")
    parts = mlx(scheme)
    tensors = {
        "up.weight": parts["weight"].view(np.int8),
        "up.scale": parts["scales"].view(E8M0),
    }
    seen = seen_as(tensors)
    assert seen.section == scheme.record
    for part, array in parts.items():
        assert seen.tensors.read(f"up.{part}").tobytes() == array.tobytes()


def test_what_is_not_mxfp8_is_refused_by_name():
    with pytest.raises(UnsupportedError, match="fp8 holds linear layers in 8-bit mxfp8"):
        write(view_of(mlx(Scheme(4, 32)), Scheme(4, 32)), "fp8")


def stored(**changes):
    tensors = arrays(write(view_of(mlx(SCHEME, (64, 256)), SCHEME), "fp8").tensors)
    tensors |= {f"up.{ending}": array for ending, array in changes.items()}
    return {name: it for name, it in tensors.items() if it is not None}


@pytest.mark.parametrize(
    ("tensors", "section", "says"),
    [
        ({"weight_scale_inv": None}, {}, "up.weight_scale_inv is missing"),
        ({"weight": None}, {}, "no tensor is in 8-bit floats"),
        ({}, {"weight_block_size": [32]}, r"weight_block_size is \[32\], expected two sizes"),
        ({}, {"weight_block_size": [0, 32]}, r"weight_block_size is \[0, 32\]"),
        (
            {},
            {"weight_block_size": [1, 64]},
            r"has shape \[64, 8\], expected \[64, 4\] for a weight",
        ),
        (
            {"weight_scale_inv": np.full((64, 8), 3, np.float32)},
            {"scale_fmt": "ue8m0"},
            "up.weight_scale_inv has 3.0, and config.json says scale_fmt 'ue8m0'",
        ),
        ({"weight": np.zeros(8, ml_dtypes.float8_e4m3fn)}, {}, "expected two axes or more"),
    ],
)
def test_bad_input_is_one_line_that_names_the_tensor_and_the_value(tensors, section, says):
    with pytest.raises(BadInputError, match=says):
        seen_as(stored(**tensors), **{"weight_block_size": [1, 32]} | section)
