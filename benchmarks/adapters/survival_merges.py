"""Merge into quantized models as a user does: what the verb says against what the written layers compute.

    python benchmarks/adapters/survival_merges.py

A Llama in float16, quantized with ``mx.quantize`` at 4, 5, 6 and 8 bits in groups of 64, and one in bfloat16
that is not. Each gets adapters whose change is 0.03 to 2 of the rounding steps of its layers, by the verb
three times: as it is, which must refuse exactly where a layer is judged lost; with ``--force``, of which every layer's
verdict must agree with its functional error (see ``survival.py``), measured on the files that were
written; and with ``--promote``, which must lose nothing. An adapter of zeros must leave every tensor's bytes.
Writes ``results/adapters_survival_merges.json``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Final

from weighbridge.tests.support.adapters.survival_merges import (
    measure,
    zeros,
)
from weighbridge.tests.support.side_by_side import machine

RESULT: Final = Path(__file__).parents[1] / "results" / "adapters_survival_merges.json"
RATIOS: Final = (0.03, 0.1, 0.3, 1.0, 2.0)
BITS: Final = (4, 5, 6, 8, 16)


def main() -> None:
    """Measure, print and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    rows = []
    for bits in BITS:
        for row in (zeros(bits), *(measure(bits, ratio) for ratio in RATIOS)):
            rows.append(row)
            print(row, flush=True)
    document = {"cases": rows, "ok": all(row["ok"] for row in rows), "machine": machine()}
    arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
