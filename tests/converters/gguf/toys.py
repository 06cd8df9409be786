"""Checkpoints of a few arrays, and GGUF files of a few others."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import save_file

from weighbridge.converters.checkpoints import open_checkpoint
from weighbridge.converters.gguf import GgufFile

Q, NORM, EMBEDDING = "blk.{}.attn_q.weight", "blk.{}.attn_norm.weight", "token_embd.weight"


def checkpoint(path: Path, arrays: dict[str, np.ndarray]):
    """Return a checkpoint of ARRAYS in the new folder PATH."""
    path.mkdir()
    copies = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    save_file(copies, path / "model.safetensors")
    return open_checkpoint(path)


def like(
    path: Path, arrays: dict[str, np.ndarray], *, heads: int = 2, kind: str = "F32"
) -> GgufFile:
    """Return a GGUF file of ARRAYS, stored as KIND, for a Llama of up to twelve layers."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(12)
    writer.add_head_count(heads)
    for name, array in arrays.items():
        stored = gguf.GGMLQuantizationType[kind if array.ndim > 1 else "F32"]
        writer.add_tensor(name, gguf.quantize(array, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile(path)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Return random float32 numbers of SHAPE."""
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)
