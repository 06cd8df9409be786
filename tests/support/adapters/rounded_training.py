"""A small decoder of bytes: trained on Python's sources, in few bits, and adapted to Python's manual."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.trainers.config import validate
from weighbridge.trainers.runs.loop import make_step, train
from weighbridge.trainers.tasks import build_task

LENGTH: Final = 64
SIZES: Final = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2} | {
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 256,
    "max_position_embeddings": LENGTH,
}
TARGETS: Final = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
COUNTS: Final = {"train": 2000, "validation": 200}
DATA: Final = "weighbridge.tests.support.adapters.rounded_training:Manual"


def windows(text: bytes, count: int) -> np.ndarray:
    """Return COUNT windows of TEXT, as evenly apart as it allows."""
    starts = np.linspace(0, len(text) - LENGTH, count).astype(int)
    array = np.frombuffer(text, np.uint8)
    return np.stack([array[start : start + LENGTH] for start in starts]).astype(np.int64)


class Manual:
    """Windows of the topics of Python's manual; the last tenth is for validation."""

    def __init__(self, split: str) -> None:
        from pydoc_data.topics import topics

        text = "\n".join(topics[name] for name in sorted(topics)).encode()
        cut = len(text) * 9 // 10
        part = text[:cut] if split == "train" else text[cut:]
        self._ids = windows(part, COUNTS["train" if split == "train" else "validation"])

    def __len__(self) -> int:
        return len(self._ids)

    def batch(self, rows: Any) -> dict[str, np.ndarray]:
        """Return the windows ROWS, each to be gone on with at every byte."""
        ids = self._ids[rows]
        return {"ids": ids, "mask": np.ones_like(ids), "labels": ids}


def pretrained(folder: Path, steps: int) -> Path:
    """Train a decoder on sources of the standard library; return its directory."""
    import argparse
    import ast
    import typing

    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=False))
    text = "\n".join(inspect.getsource(it) for it in (argparse, ast, inspect, typing, json))
    ids = torch.from_numpy(windows(text.encode(), 4000))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        batch = ids[torch.randint(len(ids), (16,), generator=generator)]
        optimizer.zero_grad()
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        schedule.step()
    model.save_pretrained(folder)
    return folder


def run(*words: object) -> dict[str, Any]:
    """Run the command of WORDS, whatever it exits with; return its answer."""
    result = CliRunner().invoke(main, [*map(str, words), "--json"])
    return {"exit": result.exit_code, "output": result.output}


def recipe(model: Path, aware: object, rate: float, steps: int, seed: int) -> Any:
    """Return the configuration of an adaptation of MODEL to the manual."""
    return validate(
        {
            "model": str(model),
            "data": DATA,
            "objective": "causal_lm",
            "adapter": {"rank": 8, "targets": TARGETS, "quantize_aware": aware},
            "optimizer": {"learning_rate": rate, "weight_decay": 0.0},
            "schedule": {"kind": "cosine", "warmup": 0.05},
            "steps": steps,
            "validate_every": steps // 4,
            "checkpoint_every": steps // 4,
            "seed": seed,
        }
    )


def loss_of(model: Path) -> float:
    """Return the validation loss of the directory MODEL, in nats a byte."""
    config = recipe(model, False, 1e-3, 4, 0)
    task = build_task(config)
    step = make_step("torch", task, config)
    return task.objective.measure(step, task.splits["validation"], 16).metrics["loss"]


def adapted(base: Path, folder: Path, way: str, original: Path, **how: Any) -> dict[str, Any]:
    """Adapt BASE in one WAY, merge, and return the loss of the live adapter and of the merged directory.

    ``plain``: on the codes, merged into them. ``plain, original``: on the original, merged into that and
    quantized again. ``rounded`` and ``rounded, original``: the same, trained by rounded weights.
    """
    rounded, on_original = way.startswith("rounded"), way.endswith("original")
    aware: object = str(original) if rounded and on_original else rounded
    model = original if on_original and not rounded else base
    result = train(recipe(model, aware, **how), folder / "run", backend="torch")
    options = ["--original", original] if on_original else []
    words = ["merge", base, folder / "run", folder / "merged", *options]
    answer = run(*words)
    refused = not (folder / "merged").exists()
    if refused:
        run(*words, "--force")
    record = json.loads((folder / "merged" / "weighbridge.json").read_text())
    verdicts = [it["verdict"] for it in record["merged"].values()]
    return {
        "way": way,
        "before": result.before["loss"],
        "live": result.best["loss"],
        "merged": loss_of(folder / "merged"),
        "refused": refused,
        "exit": answer["exit"],
        "kept": f"{verdicts.count('pass')} of {len(verdicts)}",
    }
