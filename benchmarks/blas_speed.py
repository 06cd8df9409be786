"""Measure MLX on a Linux CPU with its own BLAS and with PyTorch's, in fresh processes.

    python benchmarks/blas_speed.py [--size 768] [--out benchmarks/results/blas_speed.json]

The MLX wheel for Linux is linked to a reference BLAS. Loading PyTorch's library into the global
symbol scope first lets MLX find a fast one. Both sides multiply the same float32 matrices, and run
an encoder layer's worth of products at the sizes of all-MiniLM-L6-v2; PyTorch itself is beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

CHILD = """
import json, sys, time
kind, size, repeats = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if kind == "preloaded":
    from weighbridge.converters.runtimes.blas import preload_blas
    preload_blas()
if kind == "torch":
    import torch
    random, evaluate = torch.randn, lambda array: None
else:
    import mlx.core as mx
    random, evaluate = lambda *shape: mx.random.normal(shape), mx.eval
shapes = {"square": [(size, size, size)], "layer": [(384, 384, 384)] * 4 + [(384, 384, 1536), (384, 1536, 384)]}
best = {}
for name, products in shapes.items():
    operands = [(random(m, k), random(k, n)) for m, k, n in products]
    for a, b in operands:
        evaluate([a, b])
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        evaluate([a @ b for a, b in operands])
        times.append(time.perf_counter() - begin)
    best[name] = sum(2 * m * k * n for m, k, n in products) / min(times) / 1e9
print(json.dumps(best))
"""
KINDS = ("wheel", "preloaded", "torch")


def measure(kind: str, size: int, threads: int) -> dict[str, float]:
    """Return GFLOP/s of the best repeat of each product, by name."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    repeats = "2" if kind == "wheel" else "20"  # the reference BLAS is slow, not noisy
    command = [sys.executable, "-c", CHILD, kind, str(size), repeats]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def main() -> None:
    """Measure, print side by side, keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=768)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "blas_speed.json"
    )
    arguments = parser.parse_args()
    if sys.platform != "linux":
        raise SystemExit("MLX uses Accelerate here; there is nothing to compare")
    speeds = {kind: measure(kind, arguments.size, arguments.threads) for kind in KINDS}
    ratios = {name: speeds["preloaded"][name] / speeds["wheel"][name] for name in speeds["wheel"]}
    print(f"{'GFLOP/s, float32':18}" + "".join(f"{kind:>12}" for kind in KINDS) + f"{'ratio':>10}")
    for name, ratio in ratios.items():
        row = "".join(f"{speeds[kind][name]:12.1f}" for kind in KINDS)
        print(f"{name:18}{row}{ratio:9.1f}x")
    report = {
        "size": arguments.size,
        "threads": arguments.threads,
        "gflops": speeds,
        "ratio": ratios,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
