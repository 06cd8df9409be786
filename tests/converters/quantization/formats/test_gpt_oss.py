"""gpt-oss: experts in mxfp4, as transformers loads them."""

from __future__ import annotations

import numpy as np
import pytest

from weighbridge.converters.quantization import Dequantized, Scheme
from weighbridge.converters.quantization.formats.registry import read, write
from weighbridge.errors import BadInputError, UnsupportedError

from ..conftest import Arrays, parts_of, weights
from .conftest import back, canonical, loaded, mlx, save_written, view_of

SCHEME = Scheme(4, 32, "mxfp4")
NAME = "model.layers.0.mlp.experts.down_proj"
CONFIG = {
    "model_type": "gpt_oss",
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 96,
    "layer_types": ["full_attention"],
    "tie_word_embeddings": False,
}


def tiny():
    """Return a tiny model whose experts MLX quantized, under transformers' names."""
    from transformers import GptOssConfig, GptOssForCausalLM

    arrays, random = {}, np.random.default_rng(0)
    for name, tensor in GptOssForCausalLM(GptOssConfig(**CONFIG)).state_dict().items():
        array = random.standard_normal(tuple(tensor.shape)).astype(np.float32)
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            arrays[name] = array
            continue
        experts, inputs, outputs = array.shape
        parts = parts_of(weights((experts, outputs, inputs)), SCHEME)
        arrays |= {name: parts["weight"], f"{name}.scales": parts["scales"]}
    return Dequantized(Arrays(arrays), {"quantization": SCHEME.record})


@pytest.mark.filterwarnings("ignore")  # of kernels that are not installed
def test_transformers_loads_every_weight_at_its_canonical_value(tmp_path):
    parts = tiny()
    written = write(parts, "mxfp4")
    assert written.tensors.headers[f"{NAME}_blocks"].shape == (4, 64, 1, 16)
    config = {**CONFIG, "architectures": ["GptOssForCausalLM"]}
    save_written(tmp_path / "there", written, config, config["architectures"])
    _, state = loaded(tmp_path / "there")
    assert set(state) == set(parts.headers)
    for name, array in state.items():
        expected = canonical(parts, name)
        turned = expected.swapaxes(-1, -2) if name in parts.schemes else expected
        np.testing.assert_array_equal(array, turned.astype(np.float32))


def test_a_directory_comes_back_byte_for_byte(tmp_path):
    parts = tiny()
    save_written(tmp_path / "there", write(parts, "mxfp4"), CONFIG)
    again = back(tmp_path / "there")
    assert again.schemes == parts.schemes
    for name in parts.raw.headers:
        assert again.raw.read(name).tobytes() == parts.raw.read(name).tobytes()


def test_without_experts_the_format_is_refused_by_name():
    with pytest.raises(UnsupportedError, match="mxfp4 holds experts in 4-bit mxfp4"):
        write(view_of(mlx(SCHEME), SCHEME), "mxfp4")


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({}, r"no tensor is called \*_blocks"),
        ({"x_blocks": np.zeros((2, 3, 1, 16), np.uint8)}, "x_scales is missing"),
        ({"x_blocks": np.zeros((2, 3, 1, 8), np.uint8)}, "x_scales is missing"),
        (
            {
                "x_blocks": np.zeros((2, 3, 1, 8), np.uint8),
                "x_scales": np.zeros((2, 3, 1), np.uint8),
            },
            r"x_blocks is U8\[2, 3, 1, 8\], expected bytes in blocks of 16",
        ),
        (
            {
                "x_blocks": np.zeros((2, 3, 1, 16), np.uint8),
                "x_scales": np.zeros((2, 3, 2), np.uint8),
            },
            r"x_scales is U8\[2, 3, 2\], expected shape \[2, 3, 1\]",
        ),
    ],
)
def test_bad_input_is_one_line_that_names_the_tensor_and_the_value(tensors, says):
    with pytest.raises(BadInputError, match=says):
        read(Arrays(tensors), {"quantization_config": {"quant_method": "mxfp4"}})
