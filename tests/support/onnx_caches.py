"""ONNX decoders with caches, as optimum writes them, and faults planted in these."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import nn
from transformers import AutoModelForCausalLM, DynamicCache

ROWS, TOKENS, PAST = 2, 3, 4


class WithCaches(nn.Module):
    """A causal model that takes and gives the keys and values of each layer, flat."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, position_ids, *past):
        """Return the logits, then the keys and values of each layer."""
        cache = DynamicCache([*zip(past[::2], past[1::2], strict=True)])
        asked = {"attention_mask": attention_mask, "position_ids": position_ids}
        found = self.model(input_ids=input_ids, past_key_values=cache, use_cache=True, **asked)
        kept = [it for layer in found.past_key_values.layers for it in (layer.keys, layer.values)]
        return found.logits, *kept


def with_caches(source: Path, target: Path, *, begun: bool = True) -> Path:
    """Write the model in SOURCE as TARGET with outputs present.N.*, and inputs past_key_values.N.* of a text BEGUN."""
    asked = {"dtype": torch.float32, "attn_implementation": "eager"}
    model = AutoModelForCausalLM.from_pretrained(source, **asked).eval()
    config = model.config
    names = [f"{n}.{kind}" for n in range(config.num_hidden_layers) for kind in ("key", "value")]
    past, present = ([f"{side}.{it}" for it in names] for side in ("past_key_values", "present"))
    before, past = PAST if begun else 0, past if begun else []
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    ids = torch.randint(0, config.vocab_size, (ROWS, TOKENS))
    mask = torch.ones(ROWS, before + TOKENS, dtype=torch.long)
    positions = torch.arange(before, before + TOKENS).repeat(ROWS, 1)
    caches = [torch.zeros(ROWS, config.num_key_value_heads, PAST, width) for _ in past]
    inputs = ["input_ids", "attention_mask", "position_ids", *past]
    axes = {name: {0: "batch", 1: "tokens"} for name in ("input_ids", "position_ids", "logits")}
    axes |= {"attention_mask": {0: "batch", 1: "total"}}
    axes |= {it: {0: "batch", 2: "past"} for it in past} | {
        it: {0: "batch", 2: "total"} for it in present
    }
    told = {"input_names": inputs, "output_names": ["logits", *present], "dynamic_axes": axes}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = (ids, mask, positions, *caches)
        torch.onnx.export(WithCaches(model), given, str(target), dynamo=False, **told)
    return target


def _within(graph: onnx.GraphProto, output: str) -> None:
    """Call the value OUTPUT of GRAPH ``inner``, so that another node can give the output."""
    for node in graph.node:
        for side in (node.input, node.output):
            side[:] = ["inner" if it == output else it for it in side]


def _cut(graph: onnx.GraphProto) -> None:
    """Let the first layer's values lose their first token."""
    _within(graph, "present.0.value")
    for name, number in {"/from": 1, "/to": 2**62, "/axis": 2}.items():
        graph.initializer.append(numpy_helper.from_array(np.array([number]), name))
    names = ["inner", "/from", "/to", "/axis"]
    graph.node.append(helper.make_node("Slice", names, ["present.0.value"]))


def _given(graph: onnx.GraphProto) -> None:
    """Give the second layer's keys for the first layer's."""
    _within(graph, "present.0.key")
    graph.node.append(helper.make_node("Identity", ["present.1.key"], ["present.0.key"]))


def _swapped(graph: onnx.GraphProto) -> None:
    """Let two layers read each other's values."""
    other = {"past_key_values.0.value": "past_key_values.1.value"}
    other |= {it: name for name, it in other.items()}
    for node in graph.node:
        node.input[:] = [other.get(it, it) for it in node.input]


FAULTS: dict[str, tuple[Callable[[onnx.GraphProto], None], str]] = {
    "cut": (_cut, "after call 1, present.0.value holds 0 tokens, 1 were read"),
    "given": (
        _given,
        "after call 1, present.0.key holds of the tokens read by it the keys of layer 1",
    ),
    "swapped": (
        _swapped,
        "after call 2, present.1.value holds of the tokens read before the values of layer 0",
    ),
}


def faulty(right: Path, name: str, target: Path) -> Path:
    """Write the decoder in RIGHT with the fault called NAME as TARGET."""
    proto = onnx.load(str(right))
    FAULTS[name][0](proto.graph)
    onnx.save(proto, str(target))
    return target
