"""Measure captured LSTM and GRU layers against ``mlx.nn``'s, which loop over time, in one process.

    python benchmarks/captures/recurrent_speed.py [--repeat 9]

Both run the same sizes, 16 sequences of 64 features and 128 hidden ones, forward alone and with the
gradients of all weights; as they are, and in ``mx.compile``. One capture, of 8 steps, runs all lengths.
Sides take turns; times are of the processor, BLAS with one thread. Writes ``results/recurrent_speed.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")  # threads that wait take time, too

from weighbridge.converters.runtimes.blas import preload_blas

preload_blas()

import mlx.core as mx  # noqa: E402
import torch  # noqa: E402
from mlx import nn  # noqa: E402

from weighbridge.converters.captures import capture  # noqa: E402
from weighbridge.tests.support.side_by_side import machine  # noqa: E402

RESULT: Final = Path(__file__).parents[1] / "results" / "recurrent_speed.json"
BATCH, FEATURES, HIDDEN = 16, 64, 128
LENGTHS: Final = (50, 200)
BAR: Final = 1.2
Side = tuple[nn.Module, Callable[[mx.array], mx.array]]


def sides(kind: str) -> dict[str, Side]:
    """Return the modules by name, and what each computes of the same input."""
    example = {"input": torch.randn(2, 8, FEATURES)}
    layer = getattr(torch.nn, kind)(FEATURES, HIDDEN, batch_first=True)
    captured = capture(layer, inputs=example, dynamic={"input": {0: "batch", 1: "time"}})
    by_hand = getattr(nn, kind)(FEATURES, HIDDEN)
    mx.eval(captured.parameters(), by_hand.parameters())
    first = (lambda y: y[0]) if kind == "LSTM" else (lambda y: y)
    return {
        "captured": (captured, lambda x: captured(input=x)[0]),
        "mlx.nn": (by_hand, lambda x: first(by_hand(x))),
    }


def runs(side: Side, x: mx.array) -> dict[str, Callable[[], None]]:
    """Return what is timed of SIDE, by name."""
    module, forward = side
    step: Any = nn.value_and_grad(module, lambda x: forward(x).square().sum())
    compiled: Any = mx.compile(step, inputs=module.state, outputs=module.state)
    return {
        "forward": lambda: mx.eval(forward(x)),
        "forward and backward": lambda: mx.eval(step(x)),
        "forward and backward, compiled": lambda: mx.eval(compiled(x)),
    }


def in_turns(calls: dict[str, Callable[[], None]], repeat: int) -> dict[str, float]:
    """Return the median processor time of each of CALLS, in milliseconds, after two warm-ups."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(-2, repeat):
        for name, call in calls.items():
            before = time.process_time()
            call()
            if number >= 0:
                times[name].append(time.process_time() - before)
    return {name: 1e3 * statistics.median(own) for name, own in times.items()}


def measured(kind: str, length: int, repeat: int) -> list[dict[str, Any]]:
    """Return a row for each thing that is timed of layers of KIND."""
    x = mx.random.normal((BATCH, length, FEATURES))
    own = {name: runs(side, x) for name, side in sides(kind).items()}
    rows = []
    for what in own["captured"]:
        took = in_turns({name: calls[what] for name, calls in own.items()}, repeat)
        ratio = took["captured"] / took["mlx.nn"]
        rows.append({"layer": kind, "length": length, "what": what, "ms": took, "ratio": ratio})
        print(f"{kind} {length:4} {what:32} {ratio:.2f}  {took}", flush=True)
    return rows


def main() -> None:
    """Measure, print and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=9)
    repeat = parser.parse_args().repeat
    rows = [
        row
        for kind in ("LSTM", "GRU")
        for length in LENGTHS
        for row in measured(kind, length, repeat)
    ]
    document = {"rows": rows, "bar": BAR, "repeat": repeat, "machine": machine()}
    RESULT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
