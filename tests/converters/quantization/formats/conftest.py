"""Directories in a format of Hugging Face, written here and loaded by transformers itself."""

from __future__ import annotations

import json

import numpy as np

from weighbridge.converters.checkpoints import open_checkpoint, save_tensors
from weighbridge.converters.quantization import Blocks, Dequantized
from weighbridge.converters.quantization.formats.registry import read, write

from ..conftest import Arrays, parts_of, weights

LLAMA = ("LlamaForCausalLM",)


def opened(folder):
    """Return FOLDER, of MLX, as it is seen dense."""
    return Dequantized(open_checkpoint(folder), json.loads((folder / "config.json").read_text()))


def arrays(checkpoint):
    return {name: checkpoint.read(name) for name in checkpoint.headers}


def save_written(folder, written, config, classes=LLAMA):
    """Write a directory in a format of Hugging Face, whose other settings are CONFIG."""
    folder.mkdir(exist_ok=True)
    save_tensors(folder / "model.safetensors", arrays(written.tensors))
    kept = {key: it for key, it in config.items() if key != "quantization"}
    record = kept | {"architectures": list(classes), "dtype": "float32"}
    record["quantization_config"] = written.section
    (folder / "config.json").write_text(json.dumps(record))
    return record


def there(parts, method, folder, config):
    """Write PARTS of MLX as METHOD to FOLDER; return what was written."""
    written = write(parts, method)
    save_written(folder, written, config)
    return written


def back(folder):
    """Return the directory FOLDER as MLX's parts, seen dense."""
    config = json.loads((folder / "config.json").read_text())
    seen = read(open_checkpoint(folder), config)
    return Dequantized(seen.tensors, {"quantization": seen.section} if seen.section else {})


def canonical(view, name):
    """Return the exact values of the weight NAME in float64."""
    if name in view.schemes:
        return Blocks(view.parts(name), view.schemes[name]).values()
    return view.read(name).astype(np.float64)


def loaded(folder, **more):
    """Return the state dict of what transformers makes of FOLDER."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        folder, device_map="cpu", dtype=torch.float32, **more
    )
    return model, {name: it.float().numpy() for name, it in model.state_dict().items()}


def mlx(scheme, shape=(40, 256), dtype="float16", *, whole=False, seed=0):
    """Return parts of MLX; with WHOLE zero points the biases are float32 and exact."""
    parts = parts_of(weights(shape, dtype, seed), scheme)
    if whole and scheme.affine:
        scales = parts["scales"].astype(np.float32)
        with np.errstate(all="ignore"):
            zeros = np.clip(np.rint(-parts["biases"].astype(np.float32) / scales), 0, None)
        parts["biases"] = -np.minimum(zeros, 2**scheme.bits - 1) * scales
    return parts


def view_of(parts, scheme):
    stored = {f"up.{part}": array for part, array in parts.items()}
    return Dequantized(Arrays(stored), {"quantization": scheme.record})
