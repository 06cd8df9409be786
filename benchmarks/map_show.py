"""``weighbridge map show`` on headers of the size of Llama-70B and DeepSeek-V3.

The files are sparse: headers and an index are real, tensors take no room on the disk.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil

from weighbridge.converters.checkpoints import Header
from weighbridge.converters.checkpoints.shards import arrange, index_text
from weighbridge.tests.support.side_by_side import environment, machine

RESULT: Final = Path(__file__).parent / "results" / "map_show.json"
REPEAT: Final = 5
SHARD: Final = 5_000_000_000
BLOCK: Final = 128  # rows and columns that share a scale, in fp8
LLAMA: Final[dict[str, Any]] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
}
DEEPSEEK: Final[dict[str, Any]] = {
    "model_type": "deepseek_v3",
    "architectures": ["DeepseekV3ForCausalLM"],
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "moe_layer_freq": 1,
    "first_k_dense_replace": 3,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "tie_word_embeddings": False,
}
Shapes = Iterator[tuple[str, tuple[int, ...]]]


def llama(config: dict[str, Any]) -> Shapes:
    """Yield names and shapes of a Llama."""
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    narrow = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    yield from (("model.embed_tokens.weight", (config["vocab_size"], hidden)),)
    for layer in range(config["num_hidden_layers"]):
        inside = {"self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (narrow, hidden)}
        inside |= {"self_attn.v_proj": (narrow, hidden), "self_attn.o_proj": (hidden, hidden)}
        inside |= {"mlp.gate_proj": (wide, hidden), "mlp.up_proj": (wide, hidden)}
        inside |= {"mlp.down_proj": (hidden, wide), "input_layernorm": (hidden,)}
        inside |= {"post_attention_layernorm": (hidden,)}
        yield from ((f"model.layers.{layer}.{name}.weight", inside[name]) for name in inside)
    yield from (
        ("model.norm.weight", (hidden,)),
        ("lm_head.weight", (config["vocab_size"], hidden)),
    )


def deepseek(config: dict[str, Any]) -> Shapes:
    """Yield names and shapes of a DeepSeek-V3, with the layer that predicts one token more."""
    hidden, last = config["hidden_size"], config["num_hidden_layers"]
    ends = (config["vocab_size"], hidden)
    yield "model.embed_tokens.weight", ends
    for layer in range(last + 1):
        for name, shape in deepseek_layer(config, dense=layer < config["first_k_dense_replace"]):
            yield f"model.layers.{layer}.{name}", shape
    extra = {"embed_tokens": ends, "enorm": (hidden,), "hnorm": (hidden,), "shared_head.head": ends}
    extra |= {"eh_proj": (hidden, 2 * hidden), "shared_head.norm": (hidden,)}
    yield from ((f"model.layers.{last}.{name}.weight", extra[name]) for name in extra)
    yield from (("model.norm.weight", (hidden,)), ("lm_head.weight", ends))


def deepseek_layer(config: dict[str, Any], *, dense: bool) -> Shapes:
    """Yield the tensors of one layer."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    rope, latent = config["qk_rope_head_dim"], config["kv_lora_rank"]
    plain, value = config["qk_nope_head_dim"], config["v_head_dim"]
    attention = {
        "q_a_proj": (config["q_lora_rank"], hidden),
        "q_a_layernorm": (config["q_lora_rank"],),
        "q_b_proj": (heads * (plain + rope), config["q_lora_rank"]),
        "kv_a_proj_with_mqa": (latent + rope, hidden),
        "kv_a_layernorm": (latent,),
        "kv_b_proj": (heads * (plain + value), latent),
        "o_proj": (hidden, heads * value),
    }
    yield from ((f"self_attn.{name}.weight", attention[name]) for name in attention)
    yield from ((f"{name}_layernorm.weight", (hidden,)) for name in ("input", "post_attention"))
    if dense:
        yield from feed_forward("mlp", config["intermediate_size"], hidden)
        return
    yield "mlp.gate.weight", (config["n_routed_experts"], hidden)
    yield "mlp.gate.e_score_correction_bias", (config["n_routed_experts"],)
    for expert in range(config["n_routed_experts"]):
        yield from feed_forward(f"mlp.experts.{expert}", config["moe_intermediate_size"], hidden)
    yield from feed_forward("mlp.shared_experts", config["moe_intermediate_size"], hidden)


def feed_forward(where: str, wide: int, hidden: int) -> Shapes:
    """Yield the three matrices of a gated feed-forward part."""
    shapes = {"gate": (wide, hidden), "up": (wide, hidden), "down": (hidden, wide)}
    yield from ((f"{where}.{name}_proj.weight", shapes[name]) for name in shapes)


def stored(shapes: Shapes, *, fp8: bool) -> dict[str, Header]:
    """Return headers in bfloat16, or with the projections in fp8 and a scale for each block."""
    headers = {}
    for name, shape in shapes:
        narrow = (fp8 and name.endswith("_proj.weight")) or (fp8 and "kv_a_proj_with_mqa" in name)
        narrow = narrow and "eh_proj" not in name
        headers[name] = Header("F8_E4M3" if narrow else "BF16", shape)
        if narrow:
            blocks = tuple(-(-size // BLOCK) for size in shape)
            headers[f"{name}_scale_inv"] = Header("F32", blocks)
    return headers


def write(folder: Path, config: dict[str, Any], headers: dict[str, Header]) -> None:
    """Write a checkpoint without values."""
    folder.mkdir()
    shards = arrange(headers, {"format": "pt"}, SHARD, "model")
    for shard in shards:
        with (folder / shard.file).open("wb") as file:
            file.write(shard.header)
            file.truncate(shard.size)
    (folder / "model.safetensors.index.json").write_text(index_text(shards))
    (folder / "config.json").write_text(json.dumps(config))


def measure(folder: Path, scratch: Path) -> tuple[float, float]:
    """Return seconds of ``map show`` and the largest resident set of all its processes, in MB."""
    start, peak = time.perf_counter(), 0
    process = psutil.Popen(
        [sys.executable, "-m", "weighbridge", "map", "show", str(folder)],
        stdout=subprocess.DEVNULL,
        env=environment(scratch) | {"WEIGHBRIDGE_CACHE": ""},  # learned anew each time
    )
    while process.poll() is None:
        peak = max(peak, resident(process))
        time.sleep(0.005)
    if process.returncode:
        raise SystemExit(f"map show {folder.name} failed")
    return time.perf_counter() - start, peak / 1e6


def resident(process: psutil.Process) -> int:
    """Return the bytes that PROCESS and its children hold now."""
    total = 0
    try:
        for each in (process, *process.children(recursive=True)):
            total += each.memory_info().rss
    except psutil.NoSuchProcess:
        pass
    return total


def main() -> None:
    """Measure, print, keep."""
    fp8 = {
        **DEEPSEEK,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [BLOCK] * 2},
    }
    cases = {
        "Llama-70B": (LLAMA, stored(llama(LLAMA), fp8=False)),
        "DeepSeek-V3 in bfloat16": (DEEPSEEK, stored(deepseek(DEEPSEEK), fp8=False)),
        "DeepSeek-V3 in fp8": (fp8, stored(deepseek(DEEPSEEK), fp8=True)),
    }
    rows = {}
    with tempfile.TemporaryDirectory() as place:
        scratch = Path(place)
        for number, (name, (config, headers)) in enumerate(cases.items()):
            write(scratch / str(number), config, headers)
            runs = [measure(scratch / str(number), scratch) for _ in range(REPEAT)]
            seconds = sorted(run[0] for run in runs)
            rows[name] = {
                "tensors": len(headers),
                "gigabytes": round(sum(h.nbytes for h in headers.values()) / 1e9),
                "seconds": round(seconds[len(seconds) // 2], 2),
                "all_seconds": [round(each, 2) for each in seconds],
                "peak_megabytes": round(max(run[1] for run in runs)),
            }
            row = rows[name]
            print(
                f"{name:24} {row['tensors']:6,} tensors {row['gigabytes']:5,} GB"
                f"  {row['seconds']:5.2f} s  peak {row['peak_megabytes']} MB (all processes together)"
            )
    RESULT.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
