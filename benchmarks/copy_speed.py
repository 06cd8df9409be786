"""Time a rename-only conversion against ``cp``, both as whole processes.

    python benchmarks/copy_speed.py [--gigabytes 1] [--repeat 9]

Makes a sharded bfloat16 checkpoint with the names of a BERT, converts it without a check, and
writes ``results/copy_speed.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from weighbridge.converters.checkpoints import Header, Writer

RESULT = Path(__file__).parent / "results" / "copy_speed.json"
HIDDEN, INTERMEDIATE, VOCABULARY, POSITIONS = 1024, 4096, 30522, 512
LAUNCHER = """
import resource, subprocess, sys, time
start = time.perf_counter()
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
seconds = time.perf_counter() - start
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss)
"""
BLOCK = 64 << 20  # bytes of randomness, used again with a shift


class Run(NamedTuple):
    """One process: seconds by the clock and of the processor, largest resident set in MB."""

    seconds: float
    processor: float
    megabytes: float


def bert_layout(layers: int) -> dict[str, Header]:
    """Return the tensors of a BERT with LAYERS layers, bfloat16."""
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (VOCABULARY, HIDDEN),
        "embeddings.position_embeddings.weight": (POSITIONS, HIDDEN),
        "embeddings.token_type_embeddings.weight": (2, HIDDEN),
        "embeddings.LayerNorm.weight": (HIDDEN,),
        "embeddings.LayerNorm.bias": (HIDDEN,),
        "pooler.dense.weight": (HIDDEN, HIDDEN),
        "pooler.dense.bias": (HIDDEN,),
    }
    linear = {
        "attention.self.query": (HIDDEN, HIDDEN),
        "attention.self.key": (HIDDEN, HIDDEN),
        "attention.self.value": (HIDDEN, HIDDEN),
        "attention.output.dense": (HIDDEN, HIDDEN),
        "intermediate.dense": (INTERMEDIATE, HIDDEN),
        "output.dense": (HIDDEN, INTERMEDIATE),
    }
    for layer in range(layers):
        prefix = f"encoder.layer.{layer}"
        for module, shape in linear.items():
            shapes[f"{prefix}.{module}.weight"] = shape
            shapes[f"{prefix}.{module}.bias"] = shape[:1]
        for module in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes[f"{prefix}.{module}.weight"] = shapes[f"{prefix}.{module}.bias"] = (HIDDEN,)
    return {name: Header("BF16", shape) for name, shape in shapes.items()}


def size_of(layout: dict[str, Header]) -> int:
    """Return the bytes of LAYOUT."""
    return sum(header.nbytes for header in layout.values())


def make_source(folder: Path, gigabytes: float) -> int:
    """Write a model directory of about GIGABYTES; return its bytes."""
    fixed = size_of(bert_layout(0))
    layers = max(1, round((gigabytes * 1e9 - fixed) / (size_of(bert_layout(1)) - fixed)))
    layout = bert_layout(layers)
    folder.mkdir()
    noise = memoryview(os.urandom(BLOCK) * 2)
    writer = Writer(folder, layout, metadata={"format": "pt"}, max_shard_size=300_000_000)
    for number, (name, header) in enumerate(layout.items()):
        start = number * 4099 % BLOCK
        writer.write(name, [noise[start : start + header.nbytes]])
    writer.close()
    config = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "dtype": "bfloat16",
        "hidden_act": "gelu",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": POSITIONS,
        "num_attention_heads": 16,
        "num_hidden_layers": layers,
        "type_vocab_size": 2,
        "vocab_size": VOCABULARY,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return size_of(layout)


def run(command: list[str], environment: dict[str, str]) -> Run:
    """Run COMMAND from a small launcher: a child's peak counts what its parent held at the fork."""
    answer = subprocess.run(
        [sys.executable, "-S", "-c", LAUNCHER, *command],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    seconds, processor, peak = map(float, answer.stdout.split())
    return Run(seconds, processor, peak * (1 if sys.platform == "darwin" else 1024) / 1e6)


def commands(source: Path, target: Path) -> dict[str, list[str]]:
    """Return what is compared."""
    copy = ["cp", "-r", str(source), str(target)]
    if sys.platform == "linux":
        copy.insert(1, "--reflink=never")
    convert = ["convert", "torch-to-mlx", str(source), str(target), "--check", "none"]
    return {"cp": copy, "convert": [sys.executable, "-m", "weighbridge", *convert]}


def measure(folder: Path, source: Path, repeat: int) -> dict[str, list[Run]]:
    """Run both alternately REPEAT times, after one unmeasured round."""
    runs: dict[str, list[Run]] = {"cp": [], "convert": []}
    environment = os.environ | {"PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages have their bytecode
    for number in range(repeat + 1):
        for name, command in commands(source, folder / "target").items():
            result = run(command, environment)
            shutil.rmtree(folder / "target")
            if number:
                runs[name].append(result)
    return runs


def summarise(runs: dict[str, list[Run]], nbytes: int) -> dict[str, Any]:
    """Return medians, ratio, peak memory and what they were measured on."""
    median = {name: statistics.median(run.seconds for run in each) for name, each in runs.items()}
    processor = {n: statistics.median(run.processor for run in each) for n, each in runs.items()}
    return {
        "gigabytes": round(nbytes / 1e9, 3),
        "seconds_cp": round(median["cp"], 3),
        "seconds_convert": round(median["convert"], 3),
        "ratio": round(median["convert"] / median["cp"], 2),
        "processor_seconds_cp": round(processor["cp"], 3),
        "processor_seconds_convert": round(processor["convert"], 3),
        "peak_megabytes_convert": round(max(run.megabytes for run in runs["convert"]), 1),
        "all_seconds": {
            name: [round(run.seconds, 3) for run in each] for name, each in runs.items()
        },
        "machine": {
            "system": platform.system(),
            "architecture": platform.machine(),
            "cores": os.cpu_count(),
            "memory_gigabytes": round(psutil.virtual_memory().total / 1e9),
            "load_after": round(os.getloadavg()[0], 1),
            "python": platform.python_version(),
        },
    }


def main() -> None:
    """Measure, print and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--repeat", type=int, default=9)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        nbytes = make_source(folder / "source", arguments.gigabytes)
        result = summarise(measure(folder, folder / "source", arguments.repeat), nbytes)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(
        f"{result['gigabytes']} GB: cp {result['seconds_cp']} s, convert"
        f" {result['seconds_convert']} s, ratio {result['ratio']},"
        f" peak {result['peak_megabytes_convert']} MB"
    )


if __name__ == "__main__":
    main()
