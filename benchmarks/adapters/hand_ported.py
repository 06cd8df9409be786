"""Merge adapters of a hand-written port, as ``.npz`` with nested names in random orders, by the command.

    python benchmarks/adapters/hand_ported.py [--orders 50]

A T5 encoder of 6 layers, its q, k, v and o changed: 24 projections, by PyTorch's names and by those of mlx-examples.
A merge counts if all 24 are what NumPy makes of them in float64, and no other tensor has changed. Writes
``results/adapters_hand_ported.json``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

from weighbridge.tests.support.adapters import hand_ported

RESULT: Final = Path(__file__).parents[1] / "results" / "adapters_hand_ported.json"


def main() -> None:
    """Measure, print and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--orders", type=int, default=50)
    orders = parser.parse_args().orders
    rows = []
    with tempfile.TemporaryDirectory() as name:
        base = hand_ported.write_base(Path(name) / "base")
        for names in hand_ported.NAMES:
            places = (Path(name) / f"{names}{seed}" for seed in range(orders))
            found = [hand_ported.merged(base, names, seed, it) for seed, it in enumerate(places)]
            rows.append({"names": names, "merges": orders, "projections merged": Counter(found)})
            print(rows[-1], flush=True)
    RESULT.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
