"""Where published checkpoints lie otherwise than ``save_pretrained`` of transformers 5 writes them.

Mostly faults of saving: a renaming of loading, undone, also hits names that it had not changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from ..checkpoints.base import Header

Config = Mapping[str, Any]
Tensors = Iterator[tuple[str, Header]]
Row = Callable[[Config, str, Header], Tensors]

# Experts are published in one tensor each, as they run, and saved one by one.
FUSED: Final = frozenset({"qwen3_5_moe", "qwen3_5_moe_text"})
EXPERTS: Final = (".experts.gate_up_proj", ".experts.down_proj")


def renamed(*pairs: tuple[str, str]) -> Row:
    """Return the row that replaces regular expressions by names, PAIRS of both."""

    def row(_: Config, saved: str, head: Header) -> Tensors:
        for pattern, name in pairs:
            saved = re.sub(pattern, name, saved)
        yield saved, head

    return row


def transposed_experts(_: Config, name: str, head: Header) -> Tensors:
    """Yield experts as ``(expert, in, out)``; they run and are saved as ``(expert, out, in)``."""
    turned = Header(head.dtype, (head.shape[0], *reversed(head.shape[1:])))
    yield name, turned if name.endswith(EXPERTS) else head


def packed_experts(config: Config, name: str, head: Header) -> Tensors:
    """Yield experts ``(expert, in, out)`` as mxfp4: 32 codes of 4 bits to a block and its scale."""
    method = (config.get("quantization_config") or {}).get("quant_method")
    if method != "mxfp4" or not name.endswith(EXPERTS):
        yield name, head
        return
    experts, inputs, outputs = head.shape
    yield f"{name}_blocks", Header("U8", (experts, outputs, inputs // 32, 16))
    yield f"{name}_scales", Header("U8", (experts, outputs, inputs // 32))


def real_experts(config: Config, name: str, head: Header) -> Tensors:
    """Yield the tensors of experts that compute; those that pass through are saved in halves."""
    found = re.search(r"\.experts\.(\d+)\.", name)
    if found is None or int(found[1]) < config["n_routed_experts"]:
        yield name, head


def output_of_linear_layers(config: Config, name: str, head: Header) -> Tensors:
    """Yield the output projection under its own name where attention is linear."""
    kinds = config.get("layer_types") or []
    found = re.fullmatch(r"model\.layers\.(\d+)\.attention\.dense\.weight", name)
    if found and int(found[1]) < len(kinds) and kinds[int(found[1])] == "linear_attention":
        name = name.replace("dense", "o_proj")
    yield name, head


def own_keys(config: Config, name: str, head: Header) -> Tensors:
    """Yield keys and values for layers that share them too: published, read by nobody."""
    yield name, head
    text = config.get("text_config") or config
    layers, shared = text.get("num_hidden_layers", 0), text.get("num_kv_shared_layers", 0)
    found = re.search(r"\.layers\.0\.self_attn\.(k_proj|v_proj|k_norm)\.", name)
    for layer in range(layers - shared, layers) if found else ():
        yield name.replace(".layers.0.", f".layers.{layer}."), head


TOWER: Final = (r"^vision_tower\.(?!vision_model\.)", "vision_tower.vision_model.")
# Model type -> what becomes of one saved tensor.
HUB: Final[dict[str, Row]] = {
    "bailing_hybrid": output_of_linear_layers,
    "gemma3": renamed(TOWER),
    "gemma3n": own_keys,
    "gpt2": renamed((r"^transformer\.", "")),
    "gpt_oss": packed_experts,
    "kimi_k25": renamed(
        (r"^language_model\.model\.blocks\.", "language_model.model.layers."),
        (r"^model\.mm_projector\.", "mm_projector."),
        (r"^vision_tower\.encoder\.patch_embed\.", "vision_tower.patch_embed."),
    ),
    "kimi_linear": renamed((r"\.block_sparse_moe\.(gate|up|down)_proj\.", r".mlp.\1_proj.")),
    "llava": renamed(TOWER),
    "longcat_flash": real_experts,
    "muse_glimmer": renamed((r"^model\.vision_", "vision_")),
    "qwen3_vl_moe": transposed_experts,
}
