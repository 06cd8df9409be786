"""ONNX decoders of encoder-decoders, as optimum writes them, merged ones too, and faults planted in these."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import TensorProto, helper
from torch import nn
from transformers import AutoModelForSeq2SeqLM, AutoModelForSpeechSeq2Seq, DynamicCache
from transformers.cache_utils import EncoderDecoderCache

ROWS, TOKENS, PAST = 2, 3, 4
STATES, MASK = "encoder_hidden_states", "encoder_attention_mask"
BRANCH = "use_cache_branch"


class Answering(nn.Module):
    """An encoder-decoder that takes what its encoder gave, and the keys and values of each layer, flat.

    Args:
        model: of transformers.
        names: of what it takes, in order; those of caches stand last.
    """

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the logits, then what was kept of each layer: of the answer, and of the text where it is read."""
        named = dict(zip(self.names, given, strict=True))
        ids, mask, states = (named.pop(it, None) for it in ("input_ids", MASK, STATES))
        past = [*named.values()]
        if states is None:
            states = torch.zeros(ids.shape[0], past[2].shape[2], 1)  # nothing reads it
        own, text = (DynamicCache(pairs_of(past, at)) for at in (0, 2))
        found = self.model(
            encoder_outputs=(states,),
            decoder_input_ids=ids,
            past_key_values=EncoderDecoderCache(own, text),
            use_cache=True,
            **({} if mask is None else {"attention_mask": mask}),
        )
        kept = found.past_key_values
        sides = [kept.self_attention_cache] + [kept.cross_attention_cache] * (not past)
        layers = zip(*(it.layers for it in sides), strict=True)
        return found.logits, *(it for row in layers for one in row for it in (one.keys, one.values))


def pairs_of(past: Sequence[torch.Tensor], at: int) -> list[tuple[torch.Tensor, ...]]:
    """Return the keys and values of each layer in PAST, four to a layer, from the one AT which they begin."""
    return [tuple(past[layer + at : layer + at + 2]) for layer in range(0, len(past), 4)]


def names_of(layers: int, side: str, parts: Sequence[str] = ("decoder", "encoder")) -> list[str]:
    """Return how optimum calls the caches of so many LAYERS on one SIDE."""
    kinds = [f"{part}.{kind}" for part in parts for kind in ("key", "value")]
    return [f"{side}.{layer}.{kind}" for layer in range(layers) for kind in kinds]


def opened(source: Path) -> Any:
    """Return the model in SOURCE."""
    kinds = (AutoModelForSeq2SeqLM, AutoModelForSpeechSeq2Seq)
    kind = kinds[(source / "config.json").read_text().count('"whisper"') > 0]
    return kind.from_pretrained(source, dtype=torch.float32, attn_implementation="eager").eval()


def answering(source: Path, target: Path, *, past: bool, states: bool = True) -> Path:
    """Write the decoder of SOURCE as TARGET, with caches as inputs if PAST, and with the encoder's STATES."""
    model = opened(source)
    config, text = model.config, model.main_input_name != "input_features"
    layers = getattr(config, "num_decoder_layers", None) or config.decoder_layers
    heads = getattr(config, "num_heads", None) or config.decoder_attention_heads
    width = getattr(config, "d_kv", None) or config.d_model // heads
    length = 5 if text else config.max_source_positions
    given = {MASK: torch.ones(ROWS, length, dtype=torch.long)} if text else {}
    given["input_ids"] = torch.randint(3, config.vocab_size, (ROWS, TOKENS))
    given |= {STATES: torch.randn(ROWS, length, config.d_model)} if states else {}
    for name in names_of(layers, "past_key_values") if past else ():
        tokens = PAST if "decoder" in name else length
        given[name] = torch.randn(ROWS, heads, tokens, width)
    kept = names_of(layers, "present", ("decoder",) if past else ("decoder", "encoder"))
    axes = {MASK: {0: "batch", 1: "text"}, "input_ids": {0: "batch", 1: "tokens"}}
    axes |= {STATES: {0: "batch", 1: "text"}, "logits": {0: "batch", 1: "tokens"}}
    axes |= {it: {0: "batch", 2: axis_of(it)} for it in (*given, *kept) if "." in it}
    axes = {name: it for name, it in axes.items() if name in (*given, *kept, "logits")}
    told = {"input_names": [*given], "output_names": ["logits", *kept], "dynamic_axes": axes}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = Answering(model, [*given])
        torch.onnx.export(module, tuple(given.values()), str(target), dynamo=False, **told)
    return target


def axis_of(name: str) -> str:
    """Return what the tokens of the cache called NAME are as many as."""
    return "text" if ".encoder." in name else "past" if name.startswith("past") else "total"


def merged(first: Path, later: Path, target: Path) -> Path:
    """Write the decoders FIRST, without caches, and LATER as one file TARGET, as optimum's ``merge_decoders`` does.

    What the second does not give, keys and values of the encoder's states, is empty where it runs.
    """
    one, two = (onnx.load(str(it)) for it in (first, later))
    outputs, given = [*one.graph.output], {it.name for it in two.graph.output}
    for value in (it for it in outputs if it.name not in given):
        sizes = [it.dim_value for it in value.type.tensor_type.shape.dim]
        empty = helper.make_tensor("", TensorProto.FLOAT, [0, sizes[1], 1, sizes[3]], [])
        two.graph.node.append(helper.make_node("Constant", [], [value.name], value=empty))
    weights = {it.name: it for it in one.graph.initializer}
    for tensor in two.graph.initializer:
        if tensor.name in weights and weights[tensor.name].raw_data != tensor.raw_data:
            renamed(two.graph, tensor.name, f"{tensor.name}/later")
        weights[tensor.name] = tensor
    branches = {"then_branch": two.graph.node, "else_branch": one.graph.node}
    graphs = {it: helper.make_graph(nodes, it, [], outputs) for it, nodes in branches.items()}
    node = helper.make_node("If", [BRANCH], [it.name for it in outputs], **graphs)
    inputs = {it.name: it for it in (*one.graph.input, *two.graph.input)}
    asked = helper.make_tensor_value_info(BRANCH, TensorProto.BOOL, [1])
    sides = ([*inputs.values(), asked], outputs, [*weights.values()])
    graph = helper.make_graph([node], "merged", *sides)
    onnx.save(helper.make_model(graph, opset_imports=one.opset_import), str(target))
    return target


def renamed(graph: onnx.GraphProto, name: str, to: str) -> None:
    """Call the weight NAME of GRAPH TO."""
    for tensor in graph.initializer:
        tensor.name = to if tensor.name == name else tensor.name
    for node in graph.node:
        node.input[:] = [to if it == name else it for it in node.input]


def swap(nodes: Any) -> None:
    """Let two layers read each other's values of the answer."""
    names = [f"past_key_values.{layer}.decoder.value" for layer in (0, 1)]
    other = dict(zip(names, names[::-1], strict=True))
    for node in nodes:
        node.input[:] = [other.get(it, it) for it in node.input]


def ignore(nodes: Any) -> None:
    """Let the first layer read zeros where it is to read the text's values."""
    name, nothing = "past_key_values.0.encoder.value", "nothing"
    for node in nodes:
        node.input[:] = [nothing if it == name else it for it in node.input]
    nodes.insert(0, helper.make_node("Sub", [name, name], [nothing]))


FAULTS: dict[str, Callable[[Any], None]] = {"swap": swap, "ignore": ignore}


def faulty(right: Path, name: str, target: Path) -> Path:
    """Write the merged decoder in RIGHT as TARGET, with the fault called NAME where it reads caches."""
    proto = onnx.load(str(right))
    (branch,) = (it.g for it in proto.graph.node[0].attribute if it.name == "then_branch")
    FAULTS[name](branch.node)
    onnx.save(proto, str(target))
    return target


def source_of(kind: str, folder: Path) -> Path:
    """Write a small encoder-decoder of KIND into FOLDER, its numbers as large as trained ones."""
    from transformers import AutoConfig

    own = {"layers": 2, "attention_heads": 4, "ffn_dim": 48}
    both = {f"{side}_{what}": it for side in ("encoder", "decoder") for what, it in own.items()}
    sizes = {
        "t5": {"d_kv": 8, "num_heads": 4, "d_ff": 48, "num_layers": 2},
        "bart": {**both, "max_position_embeddings": 64},
        "whisper": {**both, "max_source_positions": 20, "num_mel_bins": 8},
    }[kind]
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = AutoConfig.for_model(kind, vocab_size=64, d_model=32, **ids, **sizes)
    kind_of = AutoModelForSpeechSeq2Seq if kind == "whisper" else AutoModelForSeq2SeqLM
    torch.manual_seed(0)
    model = kind_of.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            drawn = torch.randn_like(weight)
            weight.copy_(
                1.5 * drawn / weight.shape[-1] ** 0.5 if weight.ndim > 1 else weight + 0.2 * drawn
            )
    model.save_pretrained(folder)
    return folder
