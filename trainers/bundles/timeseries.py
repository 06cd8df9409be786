"""Series to forecast, and a small decoder in 4 bits that knows nothing, to forecast them around.

An example is two waves of random periods, amplitudes and phases with some noise: 64 values to see, 16 to find.
The decoder is a Llama with random weights, written as MLX writes a 4-bit directory.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...converters.checkpoints import save_tensors
from ...converters.quantization.mlx import part_name, quantize
from ...converters.quantization.scheme import Scheme
from ...converters.values import Array

EXAMPLES: Final[dict[str, int]] = {"train": 2000, "validation": 300, "test": 300}
SEEN, FOUND = 64, 16  # values
DECODER: Final[dict[str, Any]] = {
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}


def write_timeseries(target: Path) -> None:
    """Write to TARGET ``train.npz``, ``validation.npz``, ``test.npz`` and ``decoder``."""
    for number, (split, count) in enumerate(EXAMPLES.items()):
        values = waves(np.random.default_rng(number), count)
        np.savez(target / f"{split}.npz", series=values[:, None, :SEEN], target=values[:, SEEN:])
    _write_decoder(target / "decoder")


def waves(random: np.random.Generator, count: int) -> Array:
    """Return COUNT series, float32 of shape ``(count, 80)``."""
    periods, amplitudes = (
        random.uniform(6, 40, (2, count, 1)),
        random.uniform(0.3, 1, (2, count, 1)),
    )
    phases = random.uniform(0, 2 * np.pi, (2, count, 1))
    places = 2 * np.pi * np.arange(SEEN + FOUND)
    values = (amplitudes * np.sin(places / periods + phases)).sum(axis=0)
    return np.asarray(values + 0.05 * random.normal(size=values.shape), np.float32)


def _write_decoder(folder: Path) -> None:
    """Write the decoder: matrices of deviation ``1.5 / sqrt(columns)`` in 4 bits, all else in float32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**{key: it for key, it in DECODER.items() if key != "model_type"})
    random, scheme = np.random.default_rng(0), Scheme(bits=4, group_size=64)
    arrays: dict[str, Array] = {}
    for name, tensor in LlamaForCausalLM(config).state_dict().items():
        if tensor.ndim < 2:
            arrays[name] = tensor.numpy()
            continue
        values = random.normal(size=tensor.shape) * 1.5 / tensor.shape[-1] ** 0.5
        parts = quantize(values.astype(np.float32), scheme, "F32")
        arrays |= {part_name(name, part): array for part, array in parts.items()}
    folder.mkdir()
    save_tensors(folder / "model.safetensors", arrays, {"format": "mlx"})
    quantization = {"group_size": 64, "bits": 4}
    text = json.dumps(config.to_dict() | {"quantization": quantization}, indent=1, default=str)
    (folder / "config.json").write_text(text, encoding="utf-8")
