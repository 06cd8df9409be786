"""``metal``: the bytes of MLX, as transformers loads them."""

from __future__ import annotations

import numpy as np
import pytest

from weighbridge.converters.quantization import Dequantized, Scheme
from weighbridge.converters.quantization.formats.registry import read, write
from weighbridge.errors import BadInputError, UnsupportedError

from ..conftest import LLAMA, Arrays, parts_of, save, weights
from .conftest import back, canonical, loaded, opened, there

MIXED = {"model.layers.0.mlp.up_proj": {"group_size": 32, "bits": 8}}
PARTS = ("weight", "scales", "biases")


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_transformers_loads_every_weight_at_its_canonical_value(bits, tmp_path):
    save(tmp_path / "mlx", LLAMA, "float16", group_size=32, bits=bits)
    parts = opened(tmp_path / "mlx")
    written = there(parts, "metal", tmp_path / "metal", LLAMA)
    assert not written.losses
    _, state = loaded(tmp_path / "metal")
    assert set(state) == set(parts.headers)
    for name, array in state.items():
        expected = parts.read(name).astype(np.float32)
        if written.tensors.headers[name].dtype == "U32":  # transformers rounds to the scales' dtype
            expected = expected.astype(np.float16).astype(np.float32)
        assert array.tobytes() == expected.tobytes(), name


def test_a_weight_in_another_scheme_than_most_is_dense_and_named_so(tmp_path):
    save(
        tmp_path / "mlx",
        LLAMA,
        group_size=32,
        bits=4,
        predicate=lambda path, _: MIXED.get(path, True),
    )
    parts = opened(tmp_path / "mlx")
    written = there(parts, "metal", tmp_path / "metal", LLAMA)
    assert "model.layers.0.mlp.up_proj" in written.section["modules_to_not_convert"]
    _, state = loaded(tmp_path / "metal")
    name = "model.layers.0.mlp.up_proj.weight"
    assert state[name].tobytes() == parts.read(name).tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("size", [32, 64, 128])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_the_way_there_and_back_keeps_every_byte(bits, size, dtype):
    scheme = Scheme(bits, size)
    stored = {f"up.{part}": it for part, it in parts_of(weights((3, 256), dtype), scheme).items()}
    written = write(Dequantized(Arrays(stored), {"quantization": scheme.record}), "metal")
    assert set(written.tensors.headers) == {"up.weight", "up.scales", "up.qbiases"}
    seen = read(written.tensors, {"quantization_config": written.section})
    assert seen.section == scheme.record
    for name, array in stored.items():
        assert seen.tensors.headers[name].dtype == Arrays(stored).headers[name].dtype
        assert seen.tensors.read(name).tobytes() == array.tobytes()


def test_a_directory_comes_back_as_it_was_but_for_its_embeddings(tmp_path):
    save(tmp_path / "mlx", LLAMA, group_size=64, bits=4)
    parts = opened(tmp_path / "mlx")
    there(parts, "metal", tmp_path / "metal", LLAMA)
    again = back(tmp_path / "metal")
    assert set(parts.schemes) - set(again.schemes) == {"model.embed_tokens.weight"}
    for name in parts.headers:
        np.testing.assert_array_equal(canonical(parts, name), canonical(again, name))


def test_a_module_whose_path_begins_another_is_named_so_that_only_it_is_left_out():
    scheme = Scheme(4, 32)
    stored = {f"a.up.{part}": it for part, it in parts_of(weights((3, 64)), scheme).items()}
    stored["a.weight"] = stored["up.weight"] = np.ones((3, 64), np.float32)
    written = write(Dequantized(Arrays(stored), {"quantization": scheme.record}), "metal")
    from transformers.quantizers.quantizers_utils import should_convert_module

    left = written.section["modules_to_not_convert"]
    assert should_convert_module("a.up", left)
    assert not should_convert_module("a", left)
    assert not should_convert_module("up", left)


def metal(**changes):
    scheme = Scheme(4, 32)
    stored = {f"up.{part}": it for part, it in parts_of(weights((3, 64)), scheme).items()}
    stored["up.qbiases"] = stored.pop("up.biases")
    return {name: it for name, it in (stored | changes).items() if it is not None}


SECTION = {"quant_method": "metal", "bits": 4, "group_size": 32}


@pytest.mark.parametrize(
    ("tensors", "section", "says"),
    [
        ({"up.scales": None}, {}, "up.scales is missing"),
        ({"up.weight": None}, {}, "up.weight is missing"),
        ({"up.qbiases": None}, {}, r"no tensor is called \*.qbiases"),
        ({"up.weight": np.zeros((3, 8), np.float16)}, {}, r"up.weight is F16\[3, 8\]"),
        ({"up.weight": np.zeros((3, 6), np.uint32)}, {}, "48 columns, no multiple of the group"),
        ({"up.scales": np.zeros((3, 4), np.float16)}, {}, r"expected shape \[3, 2\]"),
        ({"up.scales": np.zeros((3, 2), np.int32)}, {}, "expected floating-point numbers"),
        ({}, {"bits": 8}, r"up.scales is F32\[3, 2\], expected shape \[3, 1\]"),
        ({}, {"bits": None}, "bits is None, expected a whole number"),
        ({}, {"group_size": "32"}, "group_size is '32', expected a whole number"),
    ],
)
def test_bad_input_is_one_line_that_names_the_tensor_and_the_value(tensors, section, says):
    with pytest.raises(BadInputError, match=says):
        read(Arrays(metal(**tensors)), {"quantization_config": SECTION | section})


def test_an_unknown_method_is_refused_with_the_known_ones():
    with pytest.raises(UnsupportedError, match=r"'magic' is unknown; known are metal"):
        read(Arrays({}), {"quantization_config": {"quant_method": "magic"}})
    with pytest.raises(BadInputError, match="quantization_config is None"):
        read(Arrays({}), {})


def test_a_width_that_the_format_has_not_is_refused_by_name():
    scheme = Scheme(6, 32)
    stored = {f"up.{part}": it for part, it in parts_of(weights((3, 64)), scheme).items()}
    with pytest.raises(UnsupportedError, match="2, 4 or 8-bit affine codes; there are 6-bit"):
        write(Dequantized(Arrays(stored), {"quantization": scheme.record}), "metal")
