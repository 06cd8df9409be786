"""Quantized MLX models with adapters, made and run by mlx-lm's own classes."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models import llama
from mlx_lm.tuner.utils import linear_to_lora_layers, load_adapters
from mlx_lm.utils import load_model, quantize_model, save_config, save_model

from weighbridge import jobs
from weighbridge.converters.checkpoints import open_checkpoint
from weighbridge.converters.models import open as open_model
from weighbridge.converters.planning.view import dense_view
from weighbridge.jobs.merging.quantized import merge_quantized
from weighbridge.jobs.provenance.placement import live_on

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 320,
    "max_position_embeddings": 256,
    "attention_bias": True,
    "tie_word_embeddings": False,
}
MOE = {
    "model_type": "qwen3_moe",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 128,
    "rms_norm_eps": 1e-5,
    "vocab_size": 320,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "max_position_embeddings": 256,
    "norm_topk_prob": True,
}
QUERY, DOWN = "self_attn.q_proj", "mlp.down_proj"
IDS = mx.array([[3, 200, 17, 9, 250, 31, 4]])
QUIET = jobs.Options(check="none")
STEP = 0.02  # about what a 4-bit step is in these models: their weights spread over 0.25 or so
TINY = STEP / 10


def dense(config, dtype, classes=llama):
    """Return a random model of mlx-lm in DTYPE, its norms and biases perturbed."""
    mx.random.seed(0)
    model = classes.Model(classes.ModelArgs.from_dict(config))
    small = [
        (name, array + 0.1 * mx.random.normal(array.shape))
        for name, array in tree_flatten(model.parameters())
        if array.ndim == 1
    ]
    model.load_weights(small, strict=False)
    model.set_dtype(dtype)
    return model


def save(folder, model, config):
    save_model(folder, model)
    save_config(dict(config), folder / "config.json")
    return folder


def quantized(folder, config=LLAMA, classes=llama, dtype=mx.float16, **how):
    """Write what mlx_lm.convert makes of a random model: its base, and the dense original."""
    model = dense(config, dtype, classes)
    save(folder / "original", model, config)
    made, settings = quantize_model(model, dict(config), **{"group_size": 64, "bits": 4} | how)
    return save(folder / "base", made, settings)


def trained(folder, base, size, keys=(QUERY, DOWN), kind="lora", rank=4):
    """Write an adapter on BASE by mlx-lm's own layers, its updates about SIZE large in each number."""
    mx.random.seed(1)
    model, _ = load_model(base)
    settings = {"rank": rank, "scale": 2.0, "dropout": 0.0, "keys": list(keys)}
    model.freeze()
    linear_to_lora_layers(model, 2, settings, use_dora=kind == "dora")
    parameters = dict(tree_flatten(model.trainable_parameters()))
    halves = {}
    for name, array in parameters.items():
        if name.endswith((".lora_a", ".lora_b")):
            spread = (size / (2.0 * rank**0.5)) ** 0.5
            halves[name] = spread * mx.random.normal(array.shape)
        elif name.endswith(".m"):
            halves[name] = array * 1.01
    folder.mkdir()
    mx.save_safetensors(str(folder / "adapters.safetensors"), halves)
    text = {"fine_tune_type": kind, "num_layers": 2, "lora_parameters": settings}
    (folder / "adapter_config.json").write_text(json.dumps(text))
    return folder


def live(base, adapter):
    """Return BASE seen dense with ADAPTER live on it."""
    return live_on(dense_view(open_model(base)), adapter)[0]


def merged(base, adapter, target, options=QUIET, *, force=False, **how):
    options = replace(options, force=force)
    return merge_quantized(live(base, adapter), options.begin(target, "model"), options, **how)


def outputs(folder, adapter=None):
    """Return what mlx-lm computes in float32 from FOLDER, codes as they are."""
    model, _ = load_model(folder)
    model = load_adapters(model, str(adapter)) if adapter else model
    model.set_dtype(mx.float32)
    return np.array(model(IDS))


def off(target, base, adapter):
    """Return how far TARGET's outputs are from the live adapter's, in parts of its effect."""
    wanted, bare, found = outputs(base, adapter), outputs(base), outputs(target)
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted - bare)


def stored(folder):
    checkpoint = open_checkpoint(folder)
    return {name: (it, checkpoint.read(name).tobytes()) for name, it in checkpoint.headers.items()}


def ignore(_):
    """See a block and do nothing."""


def settings(folder):
    return json.loads((folder / "config.json").read_text())


def changed(target, base):
    """Return the tensors that differ between two directories."""
    one, other = stored(target), stored(base)
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}


def edited(folder, target, change):
    """Copy FOLDER to TARGET, its tensors as CHANGE makes them."""
    shutil.copytree(folder, target)
    file = next(target.glob("*.safetensors"))
    tensors = change(dict(mx.load(str(file))))
    mx.eval(tensors)
    mx.save_safetensors(
        str(file), {n: mx.array(it) for n, it in tensors.items()}, {"format": "mlx"}
    )
    return target


def without(halves, layer, parts=("lora_b",)):
    """Return HALVES with those of LAYER that are named PARTS zero."""
    return {
        name: array * 0 if f".{layer}." in name and name.endswith(parts) else array
        for name, array in halves.items()
    }
