"""Where published checkpoints lie otherwise than ``save_pretrained`` of transformers 5 writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from ..checkpoints.base import Header

Config = Mapping[str, Any]
Tensors = Iterator[tuple[str, Header]]

# Experts are published in one tensor each, as they run, and saved one by one.
FUSED: Final = frozenset({"qwen3_5_moe", "qwen3_5_moe_text"})


def bare(_: Config, name: str, head: Header) -> Tensors:
    """Yield the tensor without the prefix of the base model."""
    yield name.removeprefix("transformer."), head


def transposed_experts(_: Config, name: str, head: Header) -> Tensors:
    """Yield experts as ``(expert, in, out)``; they run and are saved as ``(expert, out, in)``."""
    if name.endswith((".experts.gate_up_proj", ".experts.down_proj")):
        head = Header(head.dtype, (head.shape[0], *reversed(head.shape[1:])))
    yield name, head


def packed_experts(config: Config, name: str, head: Header) -> Tensors:
    """Yield experts ``(expert, in, out)`` as mxfp4: 32 codes of 4 bits to a block and its scale."""
    method = (config.get("quantization_config") or {}).get("quant_method")
    if method != "mxfp4" or not name.endswith((".experts.gate_up_proj", ".experts.down_proj")):
        yield name, head
        return
    experts, inputs, outputs = head.shape
    yield f"{name}_blocks", Header("U8", (experts, outputs, inputs // 32, 16))
    yield f"{name}_scales", Header("U8", (experts, outputs, inputs // 32))


# Model type -> what becomes of one saved tensor.
HUB: Final[dict[str, Callable[[Config, str, Header], Tensors]]] = {
    "gpt2": bare,
    "gpt_oss": packed_experts,
    "qwen3_vl_moe": transposed_experts,
}
