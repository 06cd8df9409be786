"""The first minute, with the core install alone: no download, no framework.

    python examples/first_minute.py [FOLDER]

A tiny model is converted to MLX's layout by its table, and checked against a golden: a recording of what
it computes, made where PyTorch was. Without a framework nothing can be run, so the verdict is at best
UNVERIFIED and says why; but every weight is explained by its values, which is enough to find the fault
that is planted then.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from safetensors.numpy import load_file, save_file

import weighbridge
from weighbridge.fixtures import unpack


def main(folder: Path) -> None:
    """Convert, check, plant a fault, check again."""
    model, golden, _ = unpack(folder)
    copy = folder / "bert-mlx"
    weighbridge.convert(model, copy, to="mlx", check="none")
    report("as converted", weighbridge.check(golden, copy))

    file = copy / "model.safetensors"
    tensors = load_file(file)
    tensors["encoder.layer.1.attention.self.query.weight"][3:5] = (
        0.0  # two rows, in one of 39 tensors
    )
    save_file(tensors, file)
    report("two rows lost", weighbridge.check(golden, copy))


def report(title: str, verdict: weighbridge.Verdict) -> None:
    """Print the verdict and what each stage has seen."""
    print(f"\n{title}: {verdict.status}")
    for stage in verdict.stages:
        print(f"  {stage.status:10} {stage.name:12} {stage.detail}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
