"""The rungs of optimisation of ``weighbridge bench RECIPE --ladder``, and the phases of their updates.

    python benchmarks/ladder.py [--updates 10]

The recipe ``causal-lora`` on two Llamas with random weights: ``weights`` on short texts, where the base takes most of
the memory, and ``activations``, smaller and on long ones, where what an update computes does. Each rung has what those
before it have. Samples a second (of time, and of processor time) and peak memory are ratios to the first, "eager,
evaluated each step"; ``of the rung before`` is the memory where an update has as many examples as in the rung before, ``at equal batch`` of the first rung with as many.
``phases`` is what the phases of an update add up to in percent of a whole one. Writes
``results/ladder.json``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from weighbridge.jobs.training.bench import Bench, bench
from weighbridge.tests.support.side_by_side import machine
from weighbridge.trainers import bundled

RESULT: Final = Path(__file__).parent / "results" / "ladder.json"
TOKENIZER: Final = "bundled:library/tokenizer"
COMMON: Final = {"vocab_size": 2048, "num_attention_heads": 4, "num_key_value_heads": 2}
MODELS: Final = {
    "weights": ({"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4}, 8),
    "activations": ({"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 2}, 128),
}  # and the tokens of a text
BATCH: Final = 2
WHOLE: Final = (95.0, 105.0)  # percent


def decoder(folder: Path, shape: Mapping[str, int]) -> tuple[Path, Path]:
    """Return the directories of a decoder of SHAPE, and of the same in 4 bits."""
    torch.manual_seed(0)
    whole, small = folder / "whole", folder / "small"
    LlamaForCausalLM(LlamaConfig(**COMMON, **shape)).save_pretrained(whole)
    tokenizer = bundled.located(TOKENIZER)
    bundled.provide([tokenizer])
    shutil.copytree(tokenizer, whole, dirs_exist_ok=True)
    words = [sys.executable, "-m", "weighbridge", "convert", "torch-to-mlx", whole, small]
    subprocess.run([*words, "--quantize", "4", "--check", "none"], check=True, capture_output=True)
    return whole, small


def rungs(settings: list[str], updates: int, small: Path, out: Path) -> list[dict[str, Any]]:
    """Return what was measured of every rung, in short."""
    what = Bench(updates=updates, ladder=True, quantized=str(small))
    rows = [row for row in bench("causal-lora", out, settings, what) if "not_run" not in row]
    first = rows[0]["peak_memory_mb"]
    found = []
    for before, row in zip([rows[0], *rows], rows, strict=False):
        same = before["examples"] == row["examples"]
        memory = round(row["peak_memory_mb"] / before["peak_memory_mb"], 3)
        found.append(
            {
                "rung": row["row"],
                "batch": row["batch_size"],
                "speed": row["ratio"],
                "speed by processor time": row["processor_ratio"],
                "memory": round(row["peak_memory_mb"] / first, 3),
                "at equal batch": row["memory_ratio"],
                "of the rung before": memory if same else None,
                "phases": row["phases_percent"],
                "loss": row["final_loss"],
            }
        )
    return found


def measured(name: str, updates: int) -> list[dict[str, Any]]:
    """Return the rungs of the model NAME."""
    shape, length = MODELS[name]
    with tempfile.TemporaryDirectory() as folder:
        whole, small = decoder(Path(folder), shape)
        settings = {"model": whole, "tokenizer": whole, "data.length": [length]}
        settings |= {"batch_size": BATCH, "accumulation": 1, "data.test": "null"}
        settings |= {"data.train": "bundled:library/validation.jsonl"}  # as good, and read sooner
        texts = [f"{key}={value}" for key, value in settings.items()]
        return rungs(texts, updates, small, Path(folder) / "bench")


def keep(found: Mapping[str, Any], updates: int) -> None:
    """Write what was FOUND so far."""
    result = {"machine": machine(), "updates": updates, "rungs": found}
    RESULT.write_text(json.dumps(result, indent=1) + "\n")


def main() -> None:
    """Measure, print a line for every rung, and keep them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--model", action="append", choices=MODELS)
    asked = parser.parse_args()
    found = json.loads(RESULT.read_text())["rungs"] if RESULT.exists() else {}
    for name in asked.model or MODELS:
        found[name] = measured(name, asked.updates)
        for row in found[name]:
            print(name, row, flush=True)
        keep(found, asked.updates)
    rows = [row for each in found.values() for row in each]
    inside = sum(WHOLE[0] <= row["phases"] <= WHOLE[1] for row in rows)
    print(f"phases add up to 95 to 105 % of an update in {inside} of {len(rows)} rungs")


if __name__ == "__main__":
    main()
