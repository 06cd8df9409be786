"""Time stacking the 64 experts of a mixture, and taking them apart again, against ``cp``.

    python benchmarks/moe_stack.py [--gigabytes 2] [--repeat 7]

To MLX, 64 tensors become one; to PyTorch, one becomes 64. Random bfloat16 weights, the map in a
file, no check, hashes included. Writes ``results/moe_stack.json``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from weighbridge.tests.support.large_models import KINDS, make_model
from weighbridge.tests.support.side_by_side import (
    convert,
    cp,
    environment,
    machine,
    measure,
    show,
    summarise,
)

RESULT = Path(__file__).parent / "results" / "moe_stack.json"
SHARD = 5_000_000_000  # bytes


def compare(folder: Path, gigabytes: float, repeat: int) -> dict[str, Any]:
    """Time both directions on a model of about GIGABYTES in FOLDER."""
    torch, mlx, target = folder / "torch", folder / "mlx", folder / "target"
    nbytes = make_model(torch, KINDS["experts"], gigabytes * 1e9, SHARD)
    by_hand = ["--map", str(folder / "by_hand.wmap")]
    results = {}
    for title, way, source in (
        ("64 experts stacked", "torch-to-mlx", torch),
        ("64 experts unstacked", "mlx-to-torch", mlx),
    ):
        commands = {"cp": cp(source, target), "convert": convert(way, source, target, *by_hand)}
        if source == mlx:
            command = convert("torch-to-mlx", torch, mlx, *by_hand)
            subprocess.run(command, check=True, env=environment(folder), stdout=subprocess.DEVNULL)
        results[title] = summarise(measure(commands, target, repeat), nbytes)
        show(title, results[title])
    return results


def main() -> None:
    """Measure, print and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=2)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        results = compare(Path(name), arguments.gigabytes, arguments.repeat)
    arguments.out.parent.mkdir(exist_ok=True)
    document = {**results, "machine": machine()}
    arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
