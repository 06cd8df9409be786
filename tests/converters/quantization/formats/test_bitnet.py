"""BitNet's three values, as transformers unpacks them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from weighbridge.converters.quantization import Blocks, Dequantized, Scheme
from weighbridge.converters.quantization.formats.registry import read, write
from weighbridge.errors import BadInputError, UnsupportedError

from ..conftest import LLAMA, Arrays
from .conftest import arrays, canonical, loaded, mlx, save_written, view_of

SECTION = {"quant_method": "bitnet", "linear_class": "autobitlinear"}


def ternary(shape, size, dtype=np.float16, seed=0):
    """Return parts of MLX whose codes are 0, 1 and 2 with biases of minus the scale."""
    codes = np.random.default_rng(seed).integers(0, 3, shape)
    scales = np.full((shape[0], shape[1] // size), 0.37, dtype)
    return dict(
        Blocks.of_codes(codes, {"scales": scales, "biases": -scales}, Scheme(2, size)).parts
    )


def seen_as(tensors, **changes):
    return read(Arrays(tensors), {"quantization_config": SECTION | changes})


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("size", [32, 64, 128])
def test_the_way_there_and_back_keeps_codes_and_scales(size, dtype):
    parts, scheme = ternary((40, 384), size, dtype), Scheme(2, size)
    view = view_of(parts, scheme)
    written = write(view, "bitnet")
    assert written.tensors.headers["up.weight"].shape == (10, 384)
    seen = read(written.tensors, {"quantization_config": written.section})
    again = Dequantized(seen.tensors, {"quantization": seen.section})
    assert again.schemes == {"up.weight": Scheme(2, 128)}  # one scale: in the largest groups
    np.testing.assert_array_equal(seen.tensors.read("up.weight"), parts["weight"])
    assert seen.tensors.headers["up.biases"] == seen.tensors.headers["up.scales"]
    np.testing.assert_array_equal(canonical(view, "up.weight"), canonical(again, "up.weight"))


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
def test_transformers_loads_every_weight_at_its_canonical_value(tmp_path):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tensors = {}
    for name, tensor in LlamaForCausalLM(LlamaConfig(**LLAMA)).state_dict().items():
        if name.startswith("model.layers") and tensor.ndim == 2:
            path = name.removesuffix(".weight")
            parts = ternary(tuple(tensor.shape), 32, np.float32, len(tensors))
            tensors |= {f"{path}.{part}": array for part, array in parts.items()}
        else:
            tensors[name] = tensor.numpy()
    view = Dequantized(Arrays(tensors), {"quantization": Scheme(2, 32).record})
    save_written(tmp_path / "there", write(view, "bitnet"), LLAMA)
    with torch.compiler.set_stance("force_eager"):
        _, state = loaded(tmp_path / "there")
    for name in view.headers:
        scale = state.get(f"{name}_scale", np.ones(1))
        made = state[name].astype(np.float64) * scale.astype(np.float64)
        np.testing.assert_array_equal(made, canonical(view, name))


def test_a_bitlinear_divides_by_its_scale():
    tensors = arrays(write(view_of(ternary((8, 64), 32), Scheme(2, 32)), "bitnet").tensors)
    seen = seen_as(tensors, linear_class="bitlinear")
    view = Dequantized(seen.tensors, {"quantization": seen.section})
    scale = np.float64(1 / tensors["up.weight_scale"].astype(np.float64)[0])
    assert set(np.unique(view.read("up.weight"))) <= {0.0, np.float32(scale), -np.float32(scale)}
    assert "rounded to float32" in seen.notes[0]


@pytest.mark.parametrize("size", [100, 700])
def test_small_blocks_make_the_same(size, monkeypatch):
    from weighbridge.converters.quantization import mlx as blocks

    written = write(view_of(ternary((40, 384), 64), Scheme(2, 64)), "bitnet")
    seen = read(written.tensors, {"quantization_config": written.section}).tensors
    wholes = [arrays(tensors) for tensors in (written.tensors, seen)]
    monkeypatch.setattr(blocks, "BLOCK", size)
    for tensors, whole in zip((written.tensors, seen), wholes, strict=True):
        for name, array in whole.items():
            for start, stop in ((0, None), (1, 700), (333, 2222)):
                found = b"".join(map(bytes, tensors.stream(name, start, stop)))
                assert found == array.tobytes()[start:stop], name


def test_other_weights_of_two_bits_are_refused():
    scheme = Scheme(2, 32)
    with pytest.raises(UnsupportedError, match="-1, 0 and 1 with one scale; there are none"):
        write(view_of(mlx(scheme), scheme), "bitnet")
    parts = ternary((8, 64), 32)
    parts["weight"] |= np.uint32(3)
    written = write(view_of(parts, scheme), "bitnet")
    with pytest.raises(UnsupportedError, match=r"up.weight has a fourth value"):
        written.tensors.read("up.weight")


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"up.weight_scale": None}, "up.weight_scale is missing"),
        ({"up.weight_scale": np.ones(2, np.float16)}, "expected one number above 0"),
        ({"up.weight_scale": np.zeros(1, np.float16)}, "expected one number above 0"),
        ({"up.weight": np.zeros((2, 64), np.float16)}, "no weight is in bytes"),
    ],
)
def test_bad_input_is_one_line_that_names_the_tensor_and_the_value(tensors, says):
    stored = arrays(write(view_of(ternary((8, 64), 32), Scheme(2, 32)), "bitnet").tensors) | tensors
    with pytest.raises(BadInputError, match=says):
        seen_as({name: it for name, it in stored.items() if it is not None})


def test_an_unknown_class_is_refused():
    with pytest.raises(UnsupportedError, match="linear_class 'other' is unknown"):
        seen_as({}, linear_class="other")
