"""Names, shapes and a map of DeepSeek-V3, from the numbers of its config.json.

The names are those of the checkpoint, without the six tensors of the next-token layer that no layer
before it has; the map is what mlx-lm's ``deepseek_v3.Model.sanitize`` does to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from weighbridge.converters.checkpoints.base import Header


class Sizes(NamedTuple):
    """The numbers of the config; the defaults are DeepSeek-V3's."""

    layers: int = 61
    experts: int = 256
    dense: int = 3
    hidden: int = 7168
    dense_width: int = 18432
    expert_width: int = 2048
    heads: int = 128
    q_rank: int = 1536
    kv_rank: int = 512
    nope: int = 128
    rope: int = 64
    value: int = 128
    vocabulary: int = 129280


NEW = "\n    where "
BLOCK = 128  # rows and columns that share a scale


def headers(config: Sizes, fp8: bool = False) -> dict[str, Header]:
    """Return the headers, the layer for the next token but one included."""
    found = {}
    for name, shape in _tensors(config):
        linear = len(shape) == 2 and "proj" in name
        found[name] = Header("F8_E4M3" if fp8 and linear else "BF16", shape)
        if fp8 and linear:
            scales = tuple(-(-size // BLOCK) for size in shape)
            found[f"{name}_scale_inv"] = Header("F32", scales)
    return found


def _tensors(c: Sizes) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "model.embed_tokens.weight", (c.vocabulary, c.hidden)
    for n in range(c.layers + 1):
        for name, shape in (*_attention(c), *(_mlp(c) if n < c.dense else _experts(c))):
            yield f"model.layers.{n}.{name}", shape
    yield "model.norm.weight", (c.hidden,)
    yield "lm_head.weight", (c.vocabulary, c.hidden)


def _attention(c: Sizes) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "input_layernorm.weight", (c.hidden,)
    yield "post_attention_layernorm.weight", (c.hidden,)
    yield "self_attn.q_a_layernorm.weight", (c.q_rank,)
    yield "self_attn.kv_a_layernorm.weight", (c.kv_rank,)
    yield "self_attn.q_a_proj.weight", (c.q_rank, c.hidden)
    yield "self_attn.q_b_proj.weight", (c.heads * (c.nope + c.rope), c.q_rank)
    yield "self_attn.kv_a_proj_with_mqa.weight", (c.kv_rank + c.rope, c.hidden)
    yield "self_attn.kv_b_proj.weight", (c.heads * (c.nope + c.value), c.kv_rank)
    yield "self_attn.o_proj.weight", (c.hidden, c.heads * c.value)


def _mlp(c: Sizes, prefix: str = "mlp", width: int = 0) -> Iterator[tuple[str, tuple[int, ...]]]:
    width = width or c.dense_width
    yield f"{prefix}.gate_proj.weight", (width, c.hidden)
    yield f"{prefix}.up_proj.weight", (width, c.hidden)
    yield f"{prefix}.down_proj.weight", (c.hidden, width)


def _experts(c: Sizes) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "mlp.gate.weight", (c.experts, c.hidden)
    yield "mlp.gate.e_score_correction_bias", (c.experts,)
    yield from _mlp(c, "mlp.shared_experts", c.expert_width)
    for expert in range(c.experts):
        yield from _mlp(c, f"mlp.experts.{expert}", c.expert_width)


def text(config: Sizes, fp8: bool = False) -> str:
    """Return the map, written as the one that is learned from the class: a name per line."""
    names = {name for name, _ in _tensors(config)}
    everywhere = [name for name, _ in _attention(config)]
    dense = [name for name, _ in _mlp(config)]
    sparse = [name for name, _ in _experts(config) if ".experts." not in name]
    rules = [f"{name} <-> same" for name in sorted(names) if ".layers." not in name]
    rules += [f"model.layers.{config.layers}.{{**}} -> original"]
    for some, layers in ((everywhere, range(config.layers)), (dense, range(config.dense)),
                         (sparse, range(config.dense, config.layers))):  # fmt: skip
        rules += [_where(_rule(f"model.layers.{{n}}.{name}", config, fp8), layers) for name in some]
    sparse_layers = range(config.dense, config.layers)
    for part in ("gate_proj", "up_proj", "down_proj"):
        rules.append(_where(_stacked(part, config, fp8), sparse_layers))
    return "\n".join(rules)


def _where(rule: str, layers: range) -> str:
    return f"{rule}{' ' if rule.endswith(',') else NEW}n = {' | '.join(map(str, layers))}"


def _rule(name: str, c: Sizes, fp8: bool) -> str:
    mlp = _mlp(c, "mlp.shared_experts", c.expert_width)
    shapes = dict((*_attention(c), *_mlp(c), *mlp))
    parts = name.replace("kv_b_proj", "embed_q"), name.replace("kv_b_proj", "unembed_out")
    if "kv_b_proj" in name and fp8:
        steps = [*_scaled(shapes["self_attn.kv_b_proj.weight"], "w"),
                 f"h = Reshape(w) [{c.heads} {c.nope + c.value} {c.kv_rank}]",
                 f"k, $1 = Split(h) [{c.nope}] 1", "$0 = Transpose(k) [0 2 1]"]  # fmt: skip
        return f"{name}, {name}_scale_inv => {', '.join(parts)}\n    by {'; '.join(steps)}"
    if "kv_b_proj" in name:
        sizes = f"h = {c.heads}, a = {c.nope}, b = {c.value}"
        return f"{name} [(h (a + b)) c] <-> {parts[0]} [h c a], {parts[1]} [h b c]{NEW}{sizes},"
    if fp8 and "proj" in name:
        steps = "; ".join(_scaled(shapes[name.partition("{n}.")[2]], "$0"))
        return f"{name}, {name}_scale_inv => {name}\n    by {steps}"
    return f"{name} <-> same"


def _stacked(part: str, c: Sizes, fp8: bool) -> str:
    experts = f"model.layers.{{n}}.mlp.experts.{{e}}.{part}.weight"
    whole = f"model.layers.{{n}}.mlp.switch_mlp.{part}.weight"
    if not fp8:
        return f"{experts} [o i] <-> {whole} [e o i]"
    steps = "; ".join(_scaled(dict(_mlp(c, "", c.expert_width))[f".{part}.weight"], "$0"))
    return f"{experts}, {experts}_scale_inv => {whole}\n    by {steps}"


def _scaled(shape: tuple[int, ...], made: str) -> list[str]:
    """Return the steps that multiply each block by its scale."""
    rows, columns = (-(-size // BLOCK) for size in shape)
    spare = [rows * BLOCK - shape[0], columns * BLOCK - shape[1]]
    return [
        "a = FromFP8(#0) bfloat16",
        "z = Constant() bfloat16 [] [0.0]",
        f"b = Pad(a, z) [0 1] [0 0] [{spare[0]} {spare[1]}]",
        f"c = Reshape(b) [{rows} {BLOCK} {columns} {BLOCK}]",
        "d = ExpandDims(#1) [1 3]",
        "f = Multiply(c, d)",
        f"g = Reshape(f) [{rows * BLOCK} {columns * BLOCK}]",
        f"i = Slice(g) [0 0] [{shape[0]} {shape[1]}] [1 1]",
        f"{made} = AsType(i) bfloat16",
    ]
