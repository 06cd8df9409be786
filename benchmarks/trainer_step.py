"""The trainer's step in MLX against the bare captured step: same module, same weights, same batch, in turns.

    python benchmarks/trainer_step.py [--repeat 9] [--workload NAME ...] [--full]

Three layers of MiniLM's sizes under InfoNCE, all weights, and a small Llama under LoRA; with ``--full``, which needs a
GPU, BERT-base and a Llama of 1B as in ``captures/gpu_steps.py``, in float32. Bare is loss, gradients and
MLX's AdamW in one compiled function of a captured module, as in ``captures/cpu_steps.py``. The trainer adds to it what a
run needs: sizes that vary, clipping, skipping what is not finite, the rate of the schedule, and the figures of an update.
``default`` is the trainer as it is set by default, which does not compile on a CPU; in a run of 1,000 updates it
compiles the optimizer's where that saves more time than it takes. Times are of the processor with
one thread of BLAS on a CPU, else of the clock. Writes ``results/trainer_step.json``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, cast

from weighbridge.benchmarks.captures import cpu_steps  # isort: skip - before MLX: sets its BLAS

import mlx.core as mx
import torch
from torch import nn as torch_nn
from torch.nn import functional

from weighbridge.benchmarks.captures import workloads
from weighbridge.converters.captures import AdapterSpec, capture
from weighbridge.tests.support.side_by_side import machine
from weighbridge.trainers.live import live
from weighbridge.trainers.runs.loop import make_step
from weighbridge.trainers.tasks import build_task

RESULT: Final = Path(__file__).parent / "results" / "trainer_step.json"
BAR: Final = 1.02
RATE: Final = 1e-4
# In a turn: as in a run, a loss is read when later updates have begun; on a CPU nothing waits for it.
UPDATES: Final = 1 if mx.default_device() == mx.Device(mx.cpu) else 4
Start = Callable[
    [], Callable[[], float]
]  # starts an update; what it returns waits for the loss before it
SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "trainer": {"compile": True},
    "without clipping": {"compile": True, "clip_norm": None},
    "default": {},
    "default, long run": {"steps": 1000},
}


class Pairs(torch_nn.Module):
    """InfoNCE of queries and documents that are two inputs, so that any number of them may be given."""

    def __init__(self, model: torch_nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, queries: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        states = self.model(input_ids=torch.cat([queries, documents])).last_hidden_state
        queries, documents = functional.normalize(states.mean(1), dim=-1).chunk(2)
        scores = queries @ documents.T * 20
        return functional.cross_entropy(scores, torch.arange(scores.shape[0]))


def bert(full: bool) -> tuple[torch_nn.Module, dict[str, torch.Tensor], tuple[str, ...]]:
    """Return a module that returns a loss, its inputs, and the layers that get adapters."""
    made = workloads.made("bert", tiny=False, dtype=torch.float32) if full else cpu_steps.bert()
    queries, documents = made.inputs["input_ids"].chunk(2)
    return Pairs(made.module.model), {"queries": queries, "documents": documents}, ()


def llama(full: bool) -> tuple[torch_nn.Module, dict[str, torch.Tensor], tuple[str, ...]]:
    """Return the same for a Llama."""
    made = workloads.made("llama", tiny=False, dtype=torch.float32) if full else cpu_steps.llama()
    return made.module, made.inputs, made.adapted


WORKLOADS: Final = {"bert": bert, "llama": llama}


def bare(
    module: torch_nn.Module, inputs: Mapping[str, torch.Tensor], adapted: tuple[str, ...]
) -> Start:
    """Return a function that starts one bare update."""
    captured = capture(module, inputs=inputs)
    spec = AdapterSpec(workloads.RANK, workloads.SCALE)
    workload = workloads.Workload(module, dict(inputs), adapted, 0)
    if layers := workloads.adapted_layers(workload):
        captured.insert_adapters({f"{path}.weight": spec for path in layers})
    fed = {name: mx.array(value.numpy()) for name, value in inputs.items()}
    start = cpu_steps.starting(captured, fed)

    def run() -> Callable[[], float]:
        loss, state = start()
        mx.async_eval(loss, state)
        return lambda: cast(float, loss.item())

    return run


def trainer(
    module: torch_nn.Module,
    inputs: Mapping[str, torch.Tensor],
    adapted: tuple[str, ...],
    changes: Mapping[str, Any],
) -> Start:
    """Return a function that starts one update of the trainer."""
    rows = {name: value.numpy() for name, value in inputs.items()}
    count = len(next(iter(rows.values())))
    settings: dict[str, Any] = {"mode": "eval", "batch_size": count, **changes}
    if adapted:
        chosen = {"rank": workloads.RANK, "scale": workloads.SCALE, "targets": [*adapted]}
        settings["adapter"] = chosen
    model: Any = module.model
    config, there = live(model, module, {"train": rows, "validation": rows}, settings)
    task = build_task(config, live=there)
    step, batch = make_step("mlx", task, config), task.splits["train"].batch(range(count))

    def run() -> Callable[[], float]:
        read = step.advance([batch], RATE)
        return lambda: read().loss

    return run


def measured(name: str, repeat: int, full: bool) -> dict[str, Any]:
    """Return the row of workload NAME."""
    torch.manual_seed(0)
    module, inputs, adapted = WORKLOADS[name](full)
    module = module.eval()
    runs = {"bare": bare(module, inputs, adapted)}
    for kind, changes in SETTINGS.items():
        runs[kind] = trainer(module, inputs, adapted, changes)
    clock = time.perf_counter if mx.default_device() != mx.Device(mx.cpu) else time.process_time
    times: dict[str, list[float]] = {kind: [] for kind in runs}
    losses: dict[str, float] = {}
    for turn in range(-2, repeat):
        for kind, run in runs.items():
            before = clock()
            reads = [run() for _ in range(UPDATES)]
            reads[-1]()
            if turn >= 0:
                times[kind].append((clock() - before) / UPDATES)
            losses.setdefault(kind, reads[0]())
    took = {kind: round(1e3 * statistics.median(own), 2) for kind, own in times.items()}
    each = {
        kind: [a / b for a, b in zip(own, times["bare"], strict=True)]
        for kind, own in times.items()
    }
    ratios = {
        kind: round(statistics.median(own), 4) for kind, own in each.items() if kind != "bare"
    }
    apart = max(losses.values()) - min(losses.values())
    print(f"{name:6} {ratios}  {took} ms  first losses apart by {apart:.1e}", flush=True)
    return {"workload": name, "ms": took, "ratios": ratios, "first_losses_apart": apart}


def main() -> None:
    """Measure, print and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--workload", action="append", choices=WORKLOADS)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULT)
    asked = parser.parse_args()
    repeat = asked.repeat
    rows = [measured(name, repeat, asked.full) for name in asked.workload or WORKLOADS]
    worst = max(row["ratios"]["trainer"] for row in rows)
    print(f"largest {worst:.3f} x bare, bar {BAR}: {'reached' if worst <= BAR else 'MISSED'}")
    result = {"bar": BAR, "repeat": repeat, "largest": worst, "rows": rows}
    asked.out.write_text(json.dumps({"machine": machine(), **result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
