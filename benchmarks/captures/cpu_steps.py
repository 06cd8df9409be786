"""Measure training steps of captured models on the CPU against the same written by hand for MLX.

    python benchmarks/captures/cpu_steps.py [minilm ...] [--repeat 5]

Three layers of MiniLM's sizes under InfoNCE, all weights, MiniLM whole under LoRA, and a small Llama under LoRA: loss,
gradients and AdamW in one compiled function, in float32, from the same weights, and beside them PyTorch, eager. Sides
take turns after two warm-ups; times are of the processor, BLAS (PyTorch's MKL in all of them) with one thread. Writes
``results/cpu_steps.json``.
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
import transformers  # noqa: E402
from mlx import nn, optimizers  # noqa: E402
from mlx.utils import tree_flatten  # noqa: E402

from weighbridge.benchmarks.captures import workloads  # noqa: E402
from weighbridge.benchmarks.captures.by_hand import BY_HAND  # noqa: E402
from weighbridge.converters.captures import AdapterSpec, capture  # noqa: E402
from weighbridge.tests.support.side_by_side import machine  # noqa: E402

RESULT: Final = Path(__file__).parents[1] / "results" / "cpu_steps.json"
BAR: Final = 1.0


def encoder(adapted: tuple[str, ...], pairs: int, **options: Any) -> workloads.Workload:
    """Return an encoder of MiniLM's sizes but for OPTIONS, and so many PAIRS of 32 tokens."""
    config = transformers.BertConfig(
        hidden_size=384,
        num_attention_heads=12,
        intermediate_size=1536,
        attn_implementation="sdpa",
        **options,
    )
    module = workloads.InfoNCE(transformers.BertModel(config, add_pooling_layer=False))
    ids = torch.randint(0, config.vocab_size, (2 * pairs, 32))
    return workloads.Workload(module, {"input_ids": ids}, adapted, pairs)


def bert() -> workloads.Workload:
    """Return 3 layers of MiniLM's sizes with fewer words, 8 pairs of 32 tokens."""
    return encoder((), 8, num_hidden_layers=3, vocab_size=2000)


def minilm() -> workloads.Workload:
    """Return MiniLM's sizes, 16 pairs of 32 tokens."""
    return encoder(("query", "value"), 16, num_hidden_layers=6)


def llama() -> workloads.Workload:
    """Return 2 layers of 256 features, 4 sequences of 64 tokens."""
    config = transformers.LlamaConfig(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=2000,
        tie_word_embeddings=True,
        rope_theta=500000.0,
    )
    module = workloads.NextWord(transformers.LlamaForCausalLM(config))
    adapted = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    return workloads.Workload(module, {"input_ids": torch.randint(0, 2000, (4, 64))}, adapted, 4)


WORKLOADS: Final = {"bert": bert, "minilm": minilm, "llama": llama}


def steps(name: str) -> dict[str, Callable[[], float]]:
    """Return what makes an update of workload NAME and returns the loss before it, by side."""
    torch.manual_seed(0)
    workload = WORKLOADS[name]()
    sides, inputs = modules(name, workload)
    found = {side: step(module, inputs) for side, module in sides.items()}
    return found | {"torch": torch_step(workload)}


def modules(name: str, workload: workloads.Workload) -> tuple[dict[str, Any], dict[str, mx.array]]:
    """Return both modules of WORKLOAD in MLX, from the same weights, and their inputs."""
    module = workload.module.eval()
    captured = capture(module, inputs=workload.inputs)
    paths = workloads.adapted_layers(workload)
    by_hand = BY_HAND[name](module.model.config)
    if paths:
        spec = AdapterSpec(workloads.RANK, workloads.SCALE)
        captured.insert_adapters({f"{path}.weight": spec for path in paths})
        by_hand.freeze()
        by_hand.unfreeze(keys=["lora_a", "lora_b"])
    known = dict(tree_flatten(by_hand.parameters()))
    own = [(key, value) for key, value in tree_flatten(captured.parameters()) if key in known]
    by_hand.load_weights(own, strict=True)
    inputs = {key: mx.array(value.numpy()) for key, value in workload.inputs.items()}
    return {"captured": captured, "by hand": by_hand}, inputs


def starting(module: Any, inputs: dict[str, mx.array]) -> Callable[[], tuple[mx.array, Any]]:
    """Return a function that starts one update of MODULE; it returns the loss before it, and the state."""
    optimizer = optimizers.AdamW(1e-4, bias_correction=True)
    optimizer.init(module.trainable_parameters())
    state = [module.state, optimizer.state]
    loss_and_gradients = nn.value_and_grad(module, lambda given: module(**given))

    def update(given: dict[str, mx.array]) -> mx.array:
        loss, gradients = loss_and_gradients(given)
        optimizer.update(module, gradients)
        return loss

    compiled = mx.compile(update, inputs=state, outputs=state)
    return lambda: (compiled(inputs), state)


def step(module: Any, inputs: dict[str, mx.array]) -> Callable[[], float]:
    """Return a function that makes one update of MODULE and returns the loss before it."""
    start = starting(module, inputs)

    def run() -> float:
        loss, state = start()
        mx.eval(loss, state)
        return float(loss.item())

    return run


def torch_step(workload: workloads.Workload) -> Callable[[], float]:
    """Return the same of WORKLOAD in PyTorch, eager."""
    module = workloads.with_lora(workload).eval()
    trained = [it for it in module.parameters() if it.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.01)

    def run() -> float:
        optimizer.zero_grad()
        loss = module(**workload.inputs)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return run


def measured(name: str, repeat: int) -> dict[str, Any]:
    """Return the row of workload NAME."""
    runs = steps(name)
    times: dict[str, list[float]] = {side: [] for side in runs}
    losses: dict[str, list[float]] = {side: [] for side in runs}
    for turn in range(-2, repeat):
        for side, run in runs.items():
            before = time.process_time()
            losses[side].append(run())
            if turn >= 0:
                times[side].append(time.process_time() - before)
    took = {side: 1e3 * statistics.median(own) for side, own in times.items()}
    ratio = took["captured"] / took["by hand"]
    against_torch = took["captured"] / took["torch"]
    apart = max(abs(losses[side][0] - losses["by hand"][0]) for side in losses)
    print(f"{name:6} {ratio:.3f} x, PyTorch {against_torch:.3f} x  {took}  {apart:.1e}", flush=True)
    row = {"workload": name, "ms": took, "ratio": ratio, "bar": BAR}
    return row | {"against_torch": against_torch, "first_losses_apart": apart}


def main() -> None:
    """Measure, print and keep the result; rows that are not named stay as they are."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", default=[*WORKLOADS])
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    kept = json.loads(RESULT.read_text())["rows"] if RESULT.is_file() else []
    rows = [it for it in kept if it["workload"] not in options.workloads]
    rows += [
        measured(name, options.repeat) | {"repeat": options.repeat} for name in options.workloads
    ]
    document = {"rows": rows, "machine": machine()}
    RESULT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
