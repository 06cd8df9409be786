"""Adapters of a hand-written port, as ``.npz`` with nested names in any order: all or nothing is merged."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.numpy import load_file

from weighbridge.cli import main

RANK, SCALE = 3, 1.5
PROJECTIONS = {"q": "query_proj", "k": "key_proj", "v": "value_proj", "o": "out_proj"}
TORCH = "encoder.block.{layer}.layer.0.SelfAttention.{name}"
MLX = "encoder.layers.{layer}.attention.{name}"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Return the directory of a T5 encoder with six layers, 24 projections."""
    from transformers import T5Config, T5EncoderModel

    folder = tmp_path_factory.mktemp("base") / "t5"
    torch.manual_seed(3)
    sizes = {
        "d_model": 24,
        "d_kv": 5,
        "d_ff": 28,
        "num_layers": 6,
        "num_heads": 4,
        "vocab_size": 40,
    }
    T5EncoderModel(T5Config(**sizes, dropout_rate=0.0)).save_pretrained(folder)
    return folder


def factors(generator, weight):
    out, size = weight.shape
    return {
        "lora_a": generator.normal(size=(size, RANK)).astype(np.float32),
        "lora_b": generator.normal(size=(RANK, out)).astype(np.float32),
    }


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("names", ["mlx", "torch"])
def test_24_of_24_are_merged_in_any_order(seed, names, base, tmp_path):
    generator = np.random.default_rng(seed)
    before = load_file(base / "model.safetensors")
    expected, tensors = {}, {}
    for layer in range(6):
        for torch_name, mlx_name in PROJECTIONS.items():
            weight = f"{TORCH.format(layer=layer, name=torch_name)}.weight"
            path = {
                "torch": TORCH.format(layer=layer, name=torch_name),
                "mlx": MLX.format(layer=layer, name=mlx_name),
            }[names]
            made = factors(generator, before[weight])
            tensors |= {f"{path}.{half}": array for half, array in made.items()}
            change = SCALE * (made["lora_a"].astype(float) @ made["lora_b"]).T
            expected[weight] = before[weight] + change
    shuffled = {name: tensors[name] for name in generator.permutation([*tensors])}
    folder = tmp_path / "port"
    folder.mkdir()
    np.savez(folder / "adapters.npz", **shuffled)
    (folder / "adapter_config.json").write_text(json.dumps({"lora_parameters": {"scale": SCALE}}))
    words = ["merge", base, folder, tmp_path / "out", "--check", "none"]
    result = CliRunner().invoke(main, list(map(str, words)))
    assert result.exit_code == 0, result.output
    assert len(json.loads((tmp_path / "out" / "weighbridge.json").read_text())["merged"]) == 24
    after = load_file(tmp_path / "out" / "model.safetensors")
    for name, weight in after.items():
        wanted = expected.get(name, before[name])
        assert np.allclose(weight, wanted, rtol=1e-6, atol=1e-6), name


def test_a_half_that_is_missing_is_named_and_nothing_is_written(base, tmp_path):
    generator = np.random.default_rng(0)
    before = load_file(base / "model.safetensors")
    tensors = {}
    for layer in range(6):
        weight = before[f"{TORCH.format(layer=layer, name='q')}.weight"]
        path = MLX.format(layer=layer, name="query_proj")
        tensors |= {f"{path}.{half}": array for half, array in factors(generator, weight).items()}
    del tensors["encoder.layers.3.attention.query_proj.lora_b"]
    np.savez(tmp_path / "adapters.npz", **tensors)
    words = ["merge", base, tmp_path / "adapters.npz", tmp_path / "out", "--check", "none"]
    result = CliRunner().invoke(main, list(map(str, words)))
    assert result.exit_code != 0
    assert "encoder.layers.3.attention.query_proj" in result.output
    assert not (tmp_path / "out").exists()
