"""What a merge into few bits leaves of an adapter, trained with and without ``quantize_aware``, side by side.

    python benchmarks/adapters/rounded_training.py [--bits 4] [--rates 1e-3 1e-2] [--seeds 1]

A decoder of bytes learns sources of Python's standard library, is quantized by ``convert --quantize``, and adapted (LoRA of
rank 8 on every linear layer) to the topics of Python's manual, which it has not seen. Four ways: on the codes or on the weights
that they were made from (``original``), with the sums rounded in every update (``rounded``) or not (``plain``). Each adapter is
merged by the verb; where that refuses, with ``--force``, which writes what is left. Figures are nats a byte on validation
text: before, of the live adapter as it was trained, of the merged directory. ``plain, original`` is live on the dense model,
so that its difference is that of quantization as well. Learning rates are those given, none is chosen. Writes
``results/adapters_rounded_training.json``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from itertools import product
from pathlib import Path
from typing import Final

from weighbridge.tests.support.adapters.rounded_training import adapted, pretrained, run
from weighbridge.tests.support.side_by_side import machine

RESULT: Final = Path(__file__).parents[1] / "results" / "adapters_rounded_training.json"
WAYS: Final = ("plain", "rounded", "plain, original", "rounded, original")


def main() -> None:
    """Measure, print and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bits", type=int, nargs="+", default=[4])
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3, 1e-2])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--pretraining", type=int, default=200)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    rows = []
    print("bits   rate  before    live  merged  refused  kept      way")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        original = pretrained(folder / "original", arguments.pretraining)
        for bits in arguments.bits:
            base = folder / f"base-{bits}"
            run("convert", "torch-to-mlx", original, base, "--quantize", bits)
            cases = product(arguments.rates, range(arguments.seeds), WAYS)
            for number, (rate, seed, way) in enumerate(cases):
                there = folder / f"{bits}-{number}"
                how = {"rate": rate, "seed": seed, "steps": arguments.steps}
                row = {"bits": bits, "rate": rate, "seed": seed} | adapted(
                    base, there, way, original, **how
                )
                rows.append(row)
                figures = "  ".join(f"{row[it]:6.3f}" for it in ("before", "live", "merged"))
                refused = "yes" if row["refused"] else "no"
                print(
                    f"{bits:4}  {rate:.0e}  {figures}  {refused:7}  {row['kept']:8}  {way}",
                    flush=True,
                )
    exact = [row for row in rows if row["way"].startswith("rounded")]
    worst = max(abs(row["merged"] / row["live"] - 1) for row in exact)
    document = {"rows": rows, "rounded": {"largest difference": worst}, "ok": worst < 1e-4}
    document |= {"machine": machine()}
    arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"rounded: merged and live differ by {worst:.1e} of the loss at most")


if __name__ == "__main__":
    main()
