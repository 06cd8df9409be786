"""GGUF files of tiny models, with all that llama.cpp needs to run them on token ids, and no vocabulary."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.converters.gguf.models import FAMILIES, kind_of, tensors


def runnable_file(path: Path, family: str, folder: Path, kind: str = "F32") -> Path:
    """Return PATH with the checkpoint in FOLDER, of two layers with four heads, as llama.cpp would lay it out."""
    from transformers import AutoConfig

    architecture = FAMILIES[family][2]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("A tiny model")
    add_settings(writer, AutoConfig.from_pretrained(folder))
    writer.add_tokenizer_model("no_vocab")
    for name, array in tensors(family, folder).items():
        stored = gguf.GGMLQuantizationType[kind_of(name, array, kind)]
        writer.add_tensor(name, gguf.quantize(array, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_settings(writer: gguf.GGUFWriter, config: Any) -> None:
    """Tell WRITER what CONFIG says."""
    heads = config.num_attention_heads
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(heads)
    inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    writer.add_feed_forward_length(inner)
    if config.model_type == "gpt2":
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_rope_dimension_count(size)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    for name, add in (
        ("num_local_experts", writer.add_expert_count),
        ("num_experts", writer.add_expert_count),
        ("num_experts_per_tok", writer.add_expert_used_count),
        ("moe_intermediate_size", writer.add_expert_feed_forward_length),
    ):
        if (number := getattr(config, name, None)) is not None:
            add(number)


def runnable(module: Any, family: str, kind: str = "F32") -> tuple[Any, Path]:
    """Return a folder of its own, to be kept, and in it the checkpoint ``model`` and ``model.gguf`` of MODULE."""
    place = tempfile.TemporaryDirectory(prefix="weighbridge-")
    folder = Path(place.name) / "model"
    module.save_pretrained(folder)
    return place, runnable_file(folder.with_suffix(".gguf"), family, folder, kind)


def logits(module: Any, ids: list[int]) -> np.ndarray:
    """Return what MODULE answers to IDS in float64, shape ``(tokens, words)``."""
    import torch

    with torch.inference_mode():
        return module.double()(torch.tensor([ids])).logits[0].numpy()
