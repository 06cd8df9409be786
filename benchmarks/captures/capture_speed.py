"""Measure what a capture costs beside ``torch.export.export`` alone, in processor time.

    python benchmarks/captures/capture_speed.py [--repeat 5]

A small Llama of transformers with 4 and with 24 layers, all sizes fixed, or batch and sequence varying; for
training too, which needs train and eval mode. All take turns after one warm-up each; the first capture of the process is told apart, since it
imports what is needed. Writes ``results/capture_speed.json``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from weighbridge.converters.captures import capture
from weighbridge.converters.captures.torch_to_mlx import exporting
from weighbridge.tests.support.side_by_side import machine

RESULT: Final = Path(__file__).parents[1] / "results" / "capture_speed.json"
BARS: Final = {4: 3.0, 24: 10.0}  # seconds of processor time, by layers
AXES: Final = {"input_ids": {0: "batch", 1: "sequence"}}


def llama(layers: int) -> torch.nn.Module:
    """Return a Llama of LAYERS layers and small sizes."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return LlamaForCausalLM(config).eval()


def sides(layers: int, dynamic: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """Return what is timed, by name."""
    module, inputs = llama(layers), {"input_ids": torch.randint(0, 256, (2, 16))}
    tensors = exporting.example(inputs, dynamic)
    shapes = exporting._shapes(module, tensors, dynamic)

    def export() -> Any:
        with exporting.recording(module, inputs):
            return torch.export.export(module, (), tensors, dynamic_shapes=shapes, strict=False)

    return {
        "capture": lambda: capture(module, inputs=inputs, dynamic=dynamic),
        "both modes": lambda: capture(module, inputs=inputs, dynamic=dynamic, modes="both"),
        "torch.export": export,
    }


def seconds(call: Callable[[], Any]) -> float:
    """Return the processor time of CALL."""
    before = time.process_time()
    call()
    return time.process_time() - before


def measured(layers: int, sizes: str, repeat: int) -> dict[str, Any]:
    """Return the row of a Llama of LAYERS layers whose SIZES are fixed or vary."""
    calls = sides(layers, AXES if sizes == "vary" else {})
    first = {name: seconds(call) for name, call in calls.items()}
    turns = [{name: seconds(call) for name, call in calls.items()} for _ in range(repeat)]
    took = {name: statistics.median(turn[name] for turn in turns) for name in calls}
    ratio = took["capture"] / took["torch.export"]
    row = {"layers": layers, "sizes": sizes, "seconds": took, "first": first, "ratio": ratio}
    row["both_modes"] = both = took["both modes"] / took["capture"]
    said = f"{took['capture']:.2f} s, {ratio:.2f} x; both modes {both:.2f} x"
    print(f"{layers:3} layers, sizes {sizes:5} {said}", flush=True)
    return row | {"bar": BARS[layers]}


def main() -> None:
    """Measure, print and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    warnings.simplefilter("ignore")
    rows = [measured(layers, sizes, repeat) for layers in BARS for sizes in ("fixed", "vary")]
    document = {"rows": rows, "repeat": repeat, "machine": machine()}
    RESULT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
