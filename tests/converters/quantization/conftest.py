"""Weights quantized by MLX itself, and tiny models as mlx_lm.convert writes them."""

from __future__ import annotations

import json

import ml_dtypes
import mlx.core as mx
import numpy as np

from weighbridge.converters.checkpoints import Header
from weighbridge.converters.common.dtypes import CODE
from weighbridge.converters.quantization import Scheme

AFFINE = [Scheme(bits, size) for bits in (2, 3, 4, 5, 6, 8) for size in (32, 64, 128)]
FLOATS = [Scheme(4, 32, "mxfp4"), Scheme(8, 32, "mxfp8"), Scheme(4, 16, "nvfp4")]
DTYPES = ["float32", "float16", "bfloat16"]

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 96,
    "tie_word_embeddings": False,
}
MOE = {
    **LLAMA,
    "model_type": "qwen3_moe",
    "num_hidden_layers": 1,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 64,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "norm_topk_prob": True,
    "rope_theta": 10000.0,
}


class Arrays:
    """A checkpoint of arrays in memory."""

    def __init__(self, arrays, path="memory"):
        self.arrays, self.path = dict(arrays), path
        self.headers = {n: Header(CODE[a.dtype], a.shape) for n, a in self.arrays.items()}
        self.metadata, self.files, self.ignored = {}, (), ()

    def read(self, name):
        return self.arrays[name]

    def stream(self, name, start=0, stop=None):
        data = memoryview(self.arrays[name].tobytes())[start:stop]
        yield from (data[at : at + 1000] for at in range(0, len(data), 1000))


def weights(shape, dtype="float32", seed=0):
    """Return zero-mean weights with a few outliers, as an mx array."""
    random = np.random.default_rng(seed)
    array = random.standard_normal(shape) * np.exp(random.standard_normal((*shape[:-1], 1)))
    return mx.array(array.astype(np.float32)).astype(getattr(mx, dtype))


def to_numpy(array):
    wide = np.array(array.astype(mx.float32) if array.dtype == mx.bfloat16 else array)
    return wide.astype(ml_dtypes.bfloat16) if array.dtype == mx.bfloat16 else wide


def parts_of(array, scheme):
    """Return what mx.quantize makes of ARRAY, by part, as numpy."""
    made = mx.quantize(array, scheme.group_size, scheme.bits, scheme.mode)
    return {n: to_numpy(a) for n, a in zip(("weight", "scales", "biases"), made, strict=False)}


def save(folder, config, dtype="bfloat16", predicate=None, seed=1, **how):
    """Write a random model of CONFIG in DTYPE and quantize it, as mlx_lm.convert does."""
    from mlx.utils import tree_map
    from mlx_lm.utils import _get_classes, quantize_model, save_config, save_model

    mx.random.seed(seed)
    kind, arguments = _get_classes(config)
    model = kind(arguments.from_dict(config))
    model.update(tree_map(lambda p: p.astype(getattr(mx, dtype)), model.parameters()))
    written = dict(config)
    if how:
        model, written = quantize_model(model, written, quant_predicate=predicate, **how)
    folder.mkdir(exist_ok=True)
    save_model(folder, model, donate_model=False)
    save_config(written, folder / "config.json")
    return model, json.loads((folder / "config.json").read_text())
