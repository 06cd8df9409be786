"""Late interaction trained from nothing: how well docstrings find their functions, before and after.

    python benchmarks/xtr.py [--backend mlx|torch]

Runs the recipe ``xtr``, merges its adapter in two passes, and ranks the 500 functions of the test split for each of
its docstrings, in PyTorch. Rows: BM25 alone, the encoder before training, after it, and both with BM25, at the
fixed shares 0.7 and 0.3 and at the share that is best on the validation split. The bar is a gain in MRR over
the encoder's own start whose 95 % interval is above 0. Writes ``results/xtr.json``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Final

import numpy as np
import torch

import weighbridge
from weighbridge.converters.runtimes.blas import preload_blas
from weighbridge.tests.support.side_by_side import machine
from weighbridge.trainers.config import load_config
from weighbridge.trainers.data.hybrid import best_share, lexical_scores, mixed
from weighbridge.trainers.data.pairs import read_pairs
from weighbridge.trainers.data.retrieval import paired_bootstrap, ranks_of, retrieval_metrics
from weighbridge.trainers.objectives.maxsim import MaxSim

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from search import Encoder  # what a user runs

RESULT: Final = Path(__file__).parent / "results" / "xtr.json"


def dense(model: Path, pairs: list[tuple[str, str]]) -> np.ndarray:
    """Return the scores of every query and document of PAIRS."""
    encoder = Encoder(model)
    sides = (encoder([pair[side] for pair in pairs]) for side in (0, 1))
    return MaxSim(torch.nn.Identity()).scored(*sides)


def pairs_of(path: Path) -> list[tuple[str, str]]:
    """Return query and document of every pair in PATH."""
    return [(pair[0], pair[1]) for pair in read_pairs(path).pairs]


def main() -> None:
    """Train, merge, rank, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", default="mlx", choices=("mlx", "torch"))
    backend = parser.parse_args().backend
    preload_blas()
    config = load_config("xtr")
    base = Path(config.model)
    with tempfile.TemporaryDirectory() as folder:
        run, tuned = Path(folder) / "run", Path(folder) / "tuned"
        weighbridge.train(run, "xtr", backend=backend)
        merged = weighbridge.merge(base, run, tuned)
        texts = {name: pairs_of(getattr(config.data, name)) for name in ("validation", "test")}
        before = {name: dense(base, pairs) for name, pairs in texts.items()}
        after = {name: dense(tuned, pairs) for name, pairs in texts.items()}
    words = {name: lexical_scores(*zip(*pairs, strict=True)) for name, pairs in texts.items()}
    share = best_share(after["validation"], words["validation"])
    rows = {
        "BM25": words["test"],
        "encoder before": before["test"],
        "encoder after": after["test"],
        "0.7 before + 0.3 BM25": mixed(before["test"], words["test"]),
        "0.7 after + 0.3 BM25": mixed(after["test"], words["test"]),
        f"{share} after + {1 - share:.1f} BM25 (tuned on validation)": mixed(
            after["test"], words["test"], share
        ),
    }
    found = {name: retrieval_metrics(ranks_of(scores)) for name, scores in rows.items()}
    for name, figures in found.items():
        print(f"{name:48}", *(f"{key} {value:.3f}" for key, value in figures.items()))
    reciprocal = [1 / ranks_of(side["test"]) for side in (before, after)]
    gain = paired_bootstrap(*reciprocal)
    print(
        f"MRR {gain.difference:+.3f} ({gain.low:+.3f} to {gain.high:+.3f}); merged: {merged.status}"
    )
    result = {"machine": machine(), "backend": backend, "rows": found, "gain": gain._asdict()}
    RESULT.write_text(json.dumps(result | {"bar": 0, "ok": gain.low > 0}, indent=1) + "\n")


if __name__ == "__main__":
    main()
