"""Adapters of a hand-written port of a T5 encoder: an ``.npz`` with nested names, its tensors in any order."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from click.testing import CliRunner
from safetensors.numpy import load_file

from weighbridge.cli import main

LAYERS, RANK, SCALE = 6, 3, 1.5
NAMES: Final = {  # of a projection: PyTorch's, and those of mlx-examples
    "torch": (
        "encoder.block.{layer}.layer.0.SelfAttention.{name}",
        dict(zip("qkvo", "qkvo", strict=True)),
    ),
    "mlx": (
        "encoder.layers.{layer}.attention.{name}",
        {"q": "query_proj", "k": "key_proj", "v": "value_proj", "o": "out_proj"},
    ),
}
PLACES: Final = [(layer, name) for layer in range(LAYERS) for name in "qkvo"]
SIZES: Final = {"d_model": 24, "d_kv": 5, "d_ff": 28, "num_heads": 4, "vocab_size": 40}
Arrays = dict[str, np.ndarray]


def write_base(folder: Path) -> Path:
    """Write a T5 encoder with 24 projections of attention to FOLDER, which is returned."""
    import torch
    from transformers import T5Config, T5EncoderModel

    torch.manual_seed(3)
    config = T5Config(**SIZES, num_layers=LAYERS, dropout_rate=0.0)
    T5EncoderModel(config).save_pretrained(folder)
    return folder


def module(names: str, layer: int, name: str) -> str:
    """Return what the projection NAME of LAYER is called by NAMES."""
    form, called = NAMES[names]
    return form.format(layer=layer, name=called[name])


def factors(weight: np.ndarray, generator: np.random.Generator) -> Arrays:
    """Return two random factors of a change of WEIGHT (out, in), as MLX lays them out."""
    out, size = weight.shape
    shapes = {"lora_a": (size, RANK), "lora_b": (RANK, out)}
    return {half: generator.normal(size=it).astype(np.float32) for half, it in shapes.items()}


def adapter(base: Mapping[str, np.ndarray], names: str, seed: int) -> tuple[Arrays, Arrays]:
    """Return the tensors of an adapter of BASE by NAMES in an order of SEED, and the weights that it makes."""
    generator = np.random.default_rng(seed)
    tensors, expected = {}, {}
    for layer, name in PLACES:
        weight = f"{module('torch', layer, name)}.weight"
        made = factors(base[weight], generator)
        tensors |= {f"{module(names, layer, name)}.{half}": it for half, it in made.items()}
        expected[weight] = base[weight] + SCALE * (made["lora_a"].astype(float) @ made["lora_b"]).T
    return {name: tensors[name] for name in generator.permutation([*tensors])}, expected


def merge(base: Path, tensors: Arrays, folder: Path) -> Any:
    """Write TENSORS below FOLDER, and return what ``weighbridge merge`` says of them to ``FOLDER/out``."""
    port = folder / "port"
    port.mkdir(parents=True)
    np.savez(port / "adapters.npz", **tensors)
    (port / "adapter_config.json").write_text(json.dumps({"lora_parameters": {"scale": SCALE}}))
    words = ["merge", base, port, folder / "out", "--check", "none"]
    return CliRunner().invoke(main, list(map(str, words)))


def merged(base: Path, names: str, seed: int, folder: Path) -> int:
    """Return how many of the 24 projections are merged as they should be, 0 where anything else is changed."""
    before = load_file(base / "model.safetensors")
    tensors, expected = adapter(before, names, seed)
    result = merge(base, tensors, folder)
    if result.exit_code:
        raise RuntimeError(result.output)
    after = load_file(folder / "out" / "model.safetensors")
    recorded = json.loads((folder / "out" / "weighbridge.json").read_text())["merged"]
    others = before.keys() - expected.keys()
    if after.keys() != before.keys() or any(
        after[it].tobytes() != before[it].tobytes() for it in others
    ):
        return 0
    right = [np.allclose(after[name], it, rtol=1e-6, atol=1e-6) for name, it in expected.items()]
    return min(len(recorded), sum(right))
