"""Time a rename-only conversion of a Llama against ``cp``, both as whole processes.

    python benchmarks/copy_speed.py [--gigabytes 1 4] [--repeat 9]

``map by hand`` is given its map in a file; ``map learned`` finds it by itself. Random bfloat16
weights, no check, hashes included. Writes ``results/copy_speed.json``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from weighbridge.tests.support.large_models import KINDS, make_model
from weighbridge.tests.support.side_by_side import convert, cp, machine, measure, show, summarise

RESULT = Path(__file__).parent / "results" / "copy_speed.json"
SHARD = 5_000_000_000  # bytes
WAY = "torch-to-mlx"


def compare(folder: Path, gigabytes: float, repeat: int, *, learned: bool) -> dict[str, Any]:
    """Make a model of about GIGABYTES in FOLDER and time what copies it."""
    source, target = folder / "source", folder / "target"
    nbytes = make_model(source, KINDS["llama"], gigabytes * 1e9, SHARD)
    by_hand = ["--map", str(folder / "by_hand.wmap")]
    commands = {"cp": cp(source, target), "map by hand": convert(WAY, source, target, *by_hand)}
    if learned:
        commands["map learned"] = convert(WAY, source, target)
    return summarise(measure(commands, target, repeat), nbytes)


def main() -> None:
    """Measure, print and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[1, 4])
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--no-learned", action="store_true", help="Only the map by hand.")
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    results = []
    for gigabytes in arguments.gigabytes:
        with tempfile.TemporaryDirectory() as name:
            learned = not arguments.no_learned
            results.append(compare(Path(name), gigabytes, arguments.repeat, learned=learned))
        show("Llama, tensors renamed", results[-1])
    document = {"sizes": results, "machine": machine()}
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
