"""Compare what jobs are said to need with the peaks of real runs: estimate, measured, ratio.

python benchmarks/memory_needs.py [FOLDER]
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from weighbridge.converters.models import open as open_model
from weighbridge.converters.planning.memory import COSTS, size_of

SIZES = ((256, 4), (512, 6))  # hidden size and layers of a BERT
VERBS = {
    "check": ("convert", "torch-to-mlx", "{model}", "{out}"),
    "record": ("parity", "record", "{model}", "{out}"),
    "export": ("export", "coreml", "{model}", "{out}.mlpackage"),
}


def make(folder: Path, hidden: int, layers: int) -> Path:
    """Save a random BERT and return its directory."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=hidden,
        num_attention_heads=hidden // 64,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
    )
    BertModel(config).save_pretrained(folder)
    return folder


def peak(arguments: list[str]) -> tuple[float, int]:
    """Run the command; return the largest resident size in bytes, and its exit code."""
    process = os.spawnv(
        os.P_NOWAIT, sys.executable, [sys.executable, "-m", "weighbridge", *arguments]
    )
    _, status, usage = os.wait4(process, 0)
    unit = 1 if sys.platform == "darwin" else 1024
    return usage.ru_maxrss * unit, os.waitstatus_to_exitcode(status)


def main(folder: Path) -> None:
    """Print a line for each work and size."""
    for hidden, layers in SIZES:
        model = make(folder / f"bert-{hidden}", hidden, layers)
        weights = size_of(open_model(model))
        for work, words in VERBS.items():
            names = {"model": model, "out": folder / f"{work}-{hidden}"}
            measured, code = peak([word.format_map(names) for word in words])
            need = COSTS[work].base + COSTS[work].each * weights
            print(
                f"{work:8} {weights / 1e6:6.1f} million weights: estimate {need / 1e9:.2f} GB,"
                f" measured {measured / 1e9:.2f} GB, ratio {need / measured:.2f}, exit {code}"
            )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as scratch:
            main(Path(scratch))
