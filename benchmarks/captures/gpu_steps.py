# ruff: noqa: D103 - one process, told from top to bottom
"""Training steps on one NVIDIA GPU: captured, written by hand for MLX, torch eager and torch.compile.

``python -m weighbridge.benchmarks.captures.gpu_steps --out gpu_steps.json bert t5 llama``

The variants of a workload are processes of one command. They warm up beside each other, each with an
empty cache of kernels, and are then timed in turns, a block of updates each: what else the machine does
meets all of them. ``--tiny`` runs small sizes on the CPU.

Losses of the variants are to agree. Low-rank updates are added to outputs that are already rounded to bfloat16, where
PyTorch and MLX lose what is below half a step, and torch.compile does not: it rounds after what it fuses with the sum
(with its ``emulate_precision_casts`` it loses the same). At a rate of 1e-5 that was nine tenths of the first updates,
so adapters train at 1e-3.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

VARIANTS = ("captured", "captured_plain", "by_hand", "torch", "torch_compile")
TURNS, STEPS = 8, 4  # how often each is timed, and for how many updates
RATES = {"bert": 1e-5, "t5": 1e-3, "llama": 1e-3}  # learning rates, by workload


def by_hand(name, workload, narrow):
    """Return the model of a workload as somebody writes it for MLX, in the dtype NARROW."""
    from mlx.utils import tree_flatten, tree_map

    from weighbridge.converters.captures.torch_to_mlx.dtypes import to_mlx

    from .by_hand import BY_HAND

    model = BY_HAND[name](workload.module.model.config)
    state = {key: to_mlx(value) for key, value in workload.module.state_dict().items()}
    wanted = dict(tree_flatten(model.parameters()))
    model.load_weights([(key, state.get(key, wanted[key])) for key in wanted])
    model.update(tree_map(lambda a: a.astype(narrow), model.parameters()))
    if workload.adapted:
        model.freeze()
        model.apply_to_modules(lambda _, m: m.unfreeze(keys=["lora_a", "lora_b"], recurse=False))
    return model


def captured(workload, passes, narrow, report):
    """Return the module of a workload captured, with adapters where it has them."""
    from mlx.utils import tree_map

    from weighbridge.converters.captures import AdapterSpec, capture

    from .workloads import RANK, SCALE, adapted_layers

    begun = time.perf_counter()
    model = capture(workload.module, inputs=workload.inputs, passes=passes)
    report["capture_s"] = round(time.perf_counter() - begun, 2)
    report["steps_of_the_graph"] = len(model.recording.graph.steps)
    layers = adapted_layers(workload)
    if layers:
        model.insert_adapters({f"{path}.weight": AdapterSpec(RANK, SCALE) for path in layers})
        # They are made in float32; the other variants train factors of the model's dtype.
        model.update(tree_map(lambda a: a.astype(narrow), model.trainable_parameters()))
    return model


def mlx_step(name, variant, tiny, report):
    """Return a function that makes one update in MLX, and one that waits for its loss."""
    import mlx.core as mx
    import torch
    from mlx import nn
    from mlx.optimizers import AdamW

    from weighbridge.converters.captures.torch_to_mlx.dtypes import to_mlx

    from .workloads import made

    dtype, narrow = (torch.float32, mx.float32) if tiny else (torch.bfloat16, mx.bfloat16)
    workload = made(name, tiny, dtype)
    inputs = {key: to_mlx(value) for key, value in workload.inputs.items()}
    if variant == "by_hand":
        model = by_hand(name, workload, narrow)
    else:
        model = captured(workload, () if variant == "captured_plain" else None, narrow, report)
    del workload
    gc.collect()
    mx.eval(model.parameters())
    optimizer = AdamW(RATES[name], bias_correction=True)
    optimizer.init(model.trainable_parameters())
    state = [model.state, optimizer.state]
    gradient = nn.value_and_grad(model, lambda given: model(**given))

    def update(given):
        loss, gradients = gradient(given)
        optimizer.update(model, gradients)
        return loss

    compiled = mx.compile(update, inputs=state, outputs=state)

    def run():
        loss = compiled(inputs)
        mx.async_eval(loss, state)
        return loss

    report["peak_gb"] = lambda: mx.get_peak_memory() / 1e9
    return run, lambda loss: loss.item()


def torch_step(name, variant, tiny, report):
    """Return a function that makes one update in PyTorch, and one that waits for its loss."""
    import torch

    from .workloads import made, with_lora

    device, dtype = ("cpu", torch.float32) if tiny else ("cuda", torch.bfloat16)
    workload = made(name, tiny, dtype)
    module = with_lora(workload).to(device)
    inputs = {key: value.to(device) for key, value in workload.inputs.items()}
    trained = [weight for weight in module.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATES[name], fused=True)
    forward = torch.compile(module) if variant == "torch_compile" else module

    def run():
        loss = forward(**inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    peak = (lambda: 0.0) if tiny else (lambda: torch.cuda.max_memory_allocated() / 1e9)
    report["peak_gb"] = peak
    return run, lambda loss: loss.item()


def kernels(run, finish):
    """Return kernels per step, and the names on which most time goes: milliseconds and launches a step."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    finish(run())
    with profile(activities=[ProfilerActivity.CUDA]) as record:
        for _ in range(3):
            finish(run())
        torch.cuda.synchronize()
    spent, count = Counter(), Counter()
    for event in record.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            spent[event.name[:120]] += event.device_time / 3e3
            count[event.name[:120]] += 1 / 3
    rows = [[n, round(ms, 3), round(count[n], 1)] for n, ms in spent.most_common(40)]
    launches = round(sum(count.values()))
    return {
        "launches": launches,
        "gpu_ms": round(sum(spent.values()), 2),
        "distinct": len(count),
        "top": rows,
    }


def one(name, variant, tiny, folder):
    """Warm up, time a block of updates whenever a line is read, and write a report at the end."""
    report = {"workload": name, "variant": variant}
    make = torch_step if variant.startswith("torch") else mlx_step
    begun = time.perf_counter()
    run, finish = make(name, variant, tiny, report)
    report["made_s"] = round(time.perf_counter() - begun, 1)
    report["losses"] = [finish(run()) for _ in range(3)]
    report["warm_up_s"] = round(time.perf_counter() - begun, 1)
    report["warm_up_cpu_s"] = round(time.process_time(), 1)
    (folder / f"{variant}.ready").touch()
    times = []
    for _ in sys.stdin:
        times.append(block(run, finish, 1 if tiny else STEPS))
        print("timed", flush=True)
    report["step_ms"] = round(median(times) * 1e3, 2)
    report["step_ms_range"] = [round(min(times) * 1e3, 2), round(max(times) * 1e3, 2)]
    report["peak_gb"] = round(report["peak_gb"](), 2)
    report["kernels_compiled"] = len(list((folder / variant).rglob("*.ptx")))
    try:
        report["kernels"] = {} if tiny else kernels(run, finish)
    except Exception as error:  # the figures above are worth more than the profile
        report["kernels"] = {"failed": f"{type(error).__name__}: {error}"[:300]}
    (folder / f"{variant}.json").write_text(json.dumps(report))


def block(run, finish, steps):
    """Return the seconds of one of so many updates, after one that is not timed."""
    finish(run())
    started = time.perf_counter()
    for _ in range(steps):
        last = run()
    finish(last)
    return (time.perf_counter() - started) / steps


def measure(name, variants, tiny, patience):
    """Run VARIANTS of a workload beside each other until warm, then in turns."""
    with TemporaryDirectory() as place:
        folder = Path(place)
        running = {it: started(name, it, tiny, folder) for it in variants}
        end = time.monotonic() + patience
        waiting = set(variants)
        while waiting and time.monotonic() < end:
            waiting = {
                v
                for v in waiting
                if not (folder / f"{v}.ready").exists() and running[v].poll() is None
            }
            time.sleep(0.1)
        warm = {it: running[it] for it in variants if (folder / f"{it}.ready").exists()}
        for _ in range(TURNS):
            for process in warm.values():
                process.stdin.write("block\n")
                process.stdin.flush()
                process.stdout.readline()
        reports = []
        for variant in variants:
            reports.append(report_of(folder, variant, running[variant], variant in warm))
            print(json.dumps({k: v for k, v in reports[-1].items() if k != "kernels"}), flush=True)
        return reports


def started(name, variant, tiny, folder):
    """Return the process of a variant, with an empty cache of kernels."""
    own = folder / variant
    own.mkdir()
    environment = {**os.environ, "MLX_PTX_CACHE_DIR": str(own), "OMP_NUM_THREADS": "4"}
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(own / "inductor")
    command = [sys.executable, "-m", __spec__.name, name, "--one", variant, "--folder", str(folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen(command + ["--tiny"] * tiny, env=environment, **pipes)


def report_of(folder, variant, process, warm):
    """Let a process profile its kernels and end; return its report."""
    if warm:
        process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
    process.kill()
    place = folder / f"{variant}.json"
    return json.loads(place.read_text()) if place.exists() else {"variant": variant, "failed": True}


def device(tiny):
    """Return the kind of device and the versions."""
    import mlx.core as mx
    import torch
    import transformers

    name = "CPU" if tiny else torch.cuda.get_device_name()
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    return {"device": name, "mlx": mx.__version__, **versions}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="+", choices=["bert", "t5", "llama"])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--patience", type=float, default=170, help="seconds to wait for warm-up")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(options.workloads[0], options.one, options.tiny, options.folder)
        return
    found = {"machine": device(options.tiny)}
    for name in options.workloads:
        found[name] = measure(name, options.variants, options.tiny, options.patience)
        if options.out:
            options.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
