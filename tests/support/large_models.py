"""Large synthetic model directories: a Llama and a mixture of 64 experts, with maps by hand.

Names, dtypes and proportions are those of real checkpoints (TinyLlama, OLMoE); values are random
bytes. The maps are written out, so that a figure can be had with and without learning a map.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from weighbridge.converters.checkpoints import Header, Writer

BLOCK: Final = 64 << 20  # bytes of randomness, used again with a shift
HEAD: Final = "weighbridge map 1\n"
DENSE_MAP: Final = """
where n = num_hidden_layers
model.embed_tokens.weight                            <-> same
model.layers.{n}.self_attn.{qkvo}_proj.weight        <-> same
? model.layers.{n}.self_attn.{qk}_norm.weight        <-> same
model.layers.{n}.input_layernorm.weight              <-> same
model.layers.{n}.post_attention_layernorm.weight     <-> same
model.norm.weight                                    <-> same
lm_head.weight                                       <-> same
"""
LLAMA_MAP: Final = HEAD + DENSE_MAP + "model.layers.{n}.mlp.{part}_proj.weight <-> same\n"
EXPERTS_MAP: Final = (
    HEAD
    + "where e = num_experts\n"
    + DENSE_MAP
    + """
model.layers.{n}.mlp.gate.weight <-> same
model.layers.{n}.mlp.experts.{e}.{part}_proj.weight [o i]
    <-> model.layers.{n}.mlp.switch_mlp.{part}_proj.weight [e o i]
"""
)


class Kind(NamedTuple):
    """A kind of model: its configuration for a number of layers, its tensors, its map."""

    config: dict[str, Any]
    layer: Callable[[dict[str, Any]], Iterator[tuple[str, tuple[int, ...]]]]
    map: str


def attention(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the tensors of a layer but its feed-forward part."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    narrow = hidden // heads * config["num_key_value_heads"]
    yield from (("input_layernorm", (hidden,)), ("post_attention_layernorm", (hidden,)))
    yield from (("self_attn.q_proj", (hidden, hidden)), ("self_attn.k_proj", (narrow, hidden)))
    yield from (("self_attn.v_proj", (narrow, hidden)), ("self_attn.o_proj", (hidden, hidden)))
    if config["model_type"] == "olmoe":
        yield from (("self_attn.q_norm", (hidden,)), ("self_attn.k_norm", (narrow,)))


def gated(prefix: str, hidden: int, wide: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the three matrices of a gated feed-forward part."""
    yield from ((f"{prefix}.gate_proj", (wide, hidden)), (f"{prefix}.up_proj", (wide, hidden)))
    yield f"{prefix}.down_proj", (hidden, wide)


def llama_layer(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the tensors of a layer of a Llama."""
    yield from attention(config)
    yield from gated("mlp", config["hidden_size"], config["intermediate_size"])


def experts_layer(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the tensors of a layer of a mixture of experts."""
    yield from attention(config)
    yield "mlp.gate", (config["num_experts"], config["hidden_size"])
    for expert in range(config["num_experts"]):
        yield from gated(
            f"mlp.experts.{expert}", config["hidden_size"], config["intermediate_size"]
        )


SHARED: Final = {
    "dtype": "bfloat16",
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "hidden_size": 2048,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "attention_bias": False,
}
KINDS: Final = {
    "llama": Kind(
        SHARED
        | {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "intermediate_size": 5632,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "mlp_bias": False,
            "vocab_size": 32000,
        },
        llama_layer,
        LLAMA_MAP,
    ),
    "experts": Kind(
        SHARED
        | {
            "architectures": ["OlmoeForCausalLM"],
            "model_type": "olmoe",
            "intermediate_size": 1024,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "num_experts": 64,
            "num_experts_per_tok": 8,
            "norm_topk_prob": False,
            "clip_qkv": None,
            "vocab_size": 16000,
        },
        experts_layer,
        EXPERTS_MAP,
    ),
}


def layout_of(kind: Kind, layers: int) -> dict[str, Header]:
    """Return the tensors of a model of KIND with LAYERS layers, in bfloat16."""
    vocabulary = (kind.config["vocab_size"], kind.config["hidden_size"])
    shapes = {"model.embed_tokens": vocabulary}
    for layer in range(layers):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in kind.layer(kind.config)}
    shapes |= {"model.norm": vocabulary[1:], "lm_head": vocabulary}
    return {f"{name}.weight": Header("BF16", shape) for name, shape in shapes.items()}


def size_of(layout: dict[str, Header]) -> int:
    """Return the bytes of LAYOUT."""
    return sum(header.nbytes for header in layout.values())


def make_model(folder: Path, kind: Kind, nbytes: float, max_shard_size: int) -> int:
    """Write a model directory of about NBYTES, one layer at least; return its bytes."""
    fixed = size_of(layout_of(kind, 0))
    layers = max(1, round((nbytes - fixed) / (size_of(layout_of(kind, 1)) - fixed)))
    layout = layout_of(kind, layers)
    folder.mkdir()
    noise = memoryview(os.urandom(BLOCK) * 2)
    writer = Writer(folder, layout, metadata={"format": "pt"}, max_shard_size=max_shard_size)
    for number, (name, header) in enumerate(layout.items()):
        writer.write(name, random_pieces(noise, number, header.nbytes))
    writer.close()
    text = json.dumps(kind.config | {"num_hidden_layers": layers}, indent=2) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")
    (folder.parent / "by_hand.wmap").write_text(kind.map, encoding="utf-8")
    return size_of(layout)


def random_pieces(noise: memoryview, number: int, nbytes: int) -> Iterator[memoryview]:
    """Yield NBYTES of NOISE, from another place on for each NUMBER."""
    start = number * 4099 % BLOCK
    for done in range(0, nbytes, BLOCK):
        yield noise[start : start + min(BLOCK, nbytes - done)]
