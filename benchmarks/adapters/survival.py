"""Does the verdict on a merge agree with what the merged layer computes?

    python benchmarks/adapters/survival.py [--seeds 3]

Real merges, W' = round(W + D), with MLX's own rounding (``mx.quantize`` at 4, 5, 6 and 8 bits,
groups of 64) and to bfloat16, over updates D of rank 8 from 0.01 to 2 of the target's rounding step. The
verdict looks at weights alone; the *functional error* is measured on inputs X, and not by the code
that gives the verdict::

    F = ||X (W' - W - D)^T|| / ||X D^T||        0: all there; 1: as bad as no adapter at all

With the gain g and the cosine c of the change of the weights, and E = W' - W - D,

    ||E|| / ||D|| = sqrt(g^2 / c^2 - 2 g + 1)        which is at least sqrt(1 - c^2), and |1 - g|

exactly, and inputs that weigh all directions alike make the same of F. So the rule itself says which F
goes with a verdict; no bar is tuned:

* pass (c >= 0.9, g in [0.9, 1.1]): F is at most 0.542.
* warn (c >= 0.7, g in [0.7, 1.3]): F is at most 1.357, and at least 0.436 where c < 0.9 is the reason,
  0.1 where the gain is.
* refuse: F is at least 0.714 where c < 0.7 is the reason, 0.3 where the gain is.

A verdict *agrees* if F is in its interval; it is *too strict* below, *too lax* above. The first definition had
bars at gain 1 alone, 0.484 and 1.020: that is where rounding is whose grid knows nothing of the base, but
rounding to a grid that holds the base, as bfloat16 does, has a gain below 1. Agreement with those
bars too is counted as *strictly*. *Silent erasure* is a pass with F >= 1: as bad as no adapter.

Inputs: ``even``, all directions alike, must agree in every case. ``real``, what flows into three
layers of MiniLM: must never be too lax; too strict is counted. Two more are built to deceive a check that sees no
inputs. ``aligned`` updates act on the directions that inputs mostly have, as trained ones do, so that
verdicts may be too strict, but what passes must be there. ``averse`` updates act on the directions that
inputs hardly have; there is no bar, but the wrong passes are counted: the functional check has to find
those. Writes ``results/adapters_survival.json``.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np

from weighbridge.tests.support.adapters.survival import (
    MADE_UP,
    RATIOS,
    TARGETS,
    Layer,
    agreement,
    case,
    layers,
    sums,
)
from weighbridge.tests.support.side_by_side import machine

RESULT: Final = Path(__file__).parents[1] / "results" / "adapters_survival.json"


def measure_all(
    seeds: int, ratios: tuple[float, ...], chosen: Callable[[Layer], bool] = lambda _: True
) -> list[dict[str, Any]]:
    """Return all cases."""
    return [
        case(layer, target, ratio, np.random.default_rng([seed, number]))
        for seed in range(seeds)
        for layer in layers(seed)
        if chosen(layer)
        for number, (target, ratio) in enumerate(product(TARGETS, ratios))
    ]


def show(rows: list[dict[str, Any]], found: dict[str, Any]) -> None:
    """Print the count by kind of inputs, then what does not agree."""
    for inputs, row in found.items():
        print(f"{inputs:8} {row}")
    for row in exceptions(rows):
        print(f"  {row}")


def exceptions(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the cases of even and real inputs in which verdict and error do not agree."""
    own = (row for row in rows if row["inputs"] not in MADE_UP)
    found = (row | {"agreement": agreement(row)} for row in own)
    return [row for row in found if row["agreement"] not in ("strictly", "agrees")]


def main() -> None:
    """Measure, print and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    rows = measure_all(arguments.seeds, RATIOS)
    found = sums(rows)
    show(rows, found)
    document = {
        "inputs": found,
        "ok": all(row["ok"] is not False for row in found.values()),
        "exceptions": exceptions(rows),
        "table": table(rows),
        "machine": machine(),
    }
    arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def table(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the cases of even and real inputs, averaged over layers and seeds."""
    keys = ("inputs", "from", "to", "scales", "ratio")
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return [
        dict(zip(keys, group, strict=True))
        | {
            name: round(float(np.mean([row[name] for row in mine])), 3)
            for name in ("gain", "cosine", "functional_error")
        }
        | {"verdicts": dict(Counter(row["verdict"] for row in mine))}
        for group, mine in groups.items()
    ]


if __name__ == "__main__":
    main()
