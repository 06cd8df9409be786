"""Which base models of transformers can be captured: the census of one of every model type.

    python benchmarks/captures/model_types.py [TYPE ...] [--sample 60] [--seconds 120] [--again] [--apart] [--run]

Each is built from its default configuration with a few layers, without weights, recorded by
``torch.export`` on fake tensors, and counted (``weighbridge.converters.captures``); each in a process of its
own, which a time limit ends. Inputs are made from the signature of ``forward``: the main input, what has
no default, and a decoder's ids; where torch cannot export that, everything whose value is known, and where the code
decides by a mask, or its first call prepares what the next ones use, a model with weights that ran once, since those of fake tensors decide nothing. A type counts if every operation has a handler; those that torch cannot
export, or that cannot be built, count against: some need timm, torchvision or torchaudio installed, which PyPI may have
for another PyTorch alone: measured there with ``--apart``, their rows say with which versions. Results lie in ``results/captures_model_types.json`` and are
added to; types that are there are not measured again without ``--again``.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import sys
import time
import traceback
from collections import Counter
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from weighbridge.tests.support.captures.children import in_a_child
from weighbridge.tests.support.captures.fake_models import (
    built,
    configured,
    fake_model,
    inputs_of,
    model_types,
    small_model,
)

RESULT = Path(__file__).parents[1] / "results" / "captures_model_types.json"
BAR = 0.97
MOST = 5e8  # parameters of a model that gets weights
PACKAGES = ("mlx", "torch", "transformers", "weighbridge")
PREPARES = ("the next one computes otherwise", "changed in place inside torch.no_grad")
RIGHT = ("pass", "float32")
HELD = ("refused", "torch")  # for other values than those of the example
FIGURES = ("allowed", "gradient", "gradient_of_torch", "parameters")
APART = ("torch", "timm", "torchvision", "torchaudio")


def measured(model_type: str, all_known: bool = False, weights: bool = False) -> dict[str, Any]:
    """Return the census of MODEL_TYPE, or why there is none."""
    from weighbridge.converters.captures.torch_to_mlx.census import census_of
    from weighbridge.converters.captures.torch_to_mlx.exporting import record
    from weighbridge.converters.captures.torch_to_mlx.recording.sources import sources, writes

    start = time.process_time()
    stage = "build"
    try:
        model = fake_model(model_type)[0]
        if weights and sum(p.numel() for p in model.parameters()) < MOST:
            model = built(configured(model_type))
        stage = "inputs"
        inputs = inputs_of(model, all_known)
        if weights:
            with torch.no_grad():  # what the first call prepares is no part of a graph
                model(**inputs)
        stage = "export"
        program = record(model, inputs, {})
        census = census_of(program.graph_module)
        sources(program), writes(program)  # what `capture` refuses is not clean
    except Exception as error:
        if stage == "export" and not all_known and not _prepares(error):
            return measured(model_type, all_known=True)
        if "data-dependent" in str(error) and not weights:
            return measured(model_type, all_known=True, weights=True)
        return {"stage": stage, "reason": _reason(error), "seconds": time.process_time() - start}
    missing = {name: len(paths) for name, paths in census.unsupported.items()}
    return {
        "stage": "census" if missing else "clean",
        "operations": dict(census.operations),
        "unsupported": missing,
        "inputs": {
            name: list(value.shape) for name, value in inputs.items() if hasattr(value, "shape")
        },
        "seconds": time.process_time() - start,
    }


def run(model_type: str, row: dict[str, Any]) -> dict[str, Any]:
    """Return how far the capture of MODEL_TYPE, small and with weights, is from PyTorch.

    It is given other values than those it was captured with; these only where it refuses others, or says
    by NaN that it does not hold for them.
    """
    from weighbridge.benchmarks.captures.zoo import compared

    torch.manual_seed(0)
    try:
        module = small_model(model_type)
        count = sum(p.numel() for p in module.parameters())
        all_known = set(row["inputs"]) > set(inputs_of(module))
        example, others = (inputs_of(module, all_known) for _ in range(2))
    except Exception as error:
        return {"stage": "build", "reason": _reason(error)}
    given, other = (
        {name: value for name, value in inputs.items() if value is not None}
        for inputs in (example, others)
    )
    found = {"values": "other", "parameters": count, **compared(lambda: (module, other), given)}
    if found["stage"] not in HELD and found.get("allowed") != math.inf:
        return found
    same = compared(lambda: (module, given))
    return {"values": "same", "parameters": count, "others": found.get("reason", "NaN"), **same}


def _prepares(error: BaseException | str) -> bool:
    return any(it in str(error) for it in PREPARES)


def counted(model_type: str, seconds: float) -> dict[str, Any]:
    """Return what ``measured`` does, in a process of its own: in another with weights, where the first call prepares something."""
    row = in_a_child(measured, model_type, seconds)
    if not _prepares(row.get("reason", "")):
        return row
    return in_a_child(partial(measured, weights=True), model_type, seconds)


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    own = [f for f in traceback.extract_tb(error.__traceback__) if "transformers" in f.filename]
    place = f" [{Path(own[-1].filename).name}:{own[-1].lineno}]" if own else ""
    plain = re.sub(r"\S*/site-packages/", "", " ".join(lines[:2]))  # names no machine
    return f"{type(error).__name__}: {plain[:300]}{place}"


def load(path: Path) -> dict[str, dict[str, Any]]:
    """Return the rows so far."""
    return json.loads(path.read_text())["types"] if path.exists() else {}


def save(rows: dict[str, dict[str, Any]], path: Path) -> None:
    """Write the rows and what they sum up to."""
    stages = Counter(row["stage"] for row in rows.values())
    missing = Counter(name for row in rows.values() for name in row.get("unsupported", ()))
    apart = any("versions" in row for row in rows.values()) and path.exists()
    versions = json.loads(path.read_text())["versions"] if apart else _versions(PACKAGES)
    result = {
        "versions": versions,
        "known": len(model_types()),
        "measured": len(rows),
        "clean": stages["clean"],
        "share": stages["clean"] / max(len(rows), 1),
        "bar": BAR,
        "stages": dict(stages),
        "ran": dict(Counter(row["run"]["stage"] for row in rows.values() if "run" in row)),
        "unsupported": dict(missing.most_common()),
        "types": dict(sorted(rows.items())),
    }
    path.write_text(json.dumps(result, indent=1) + "\n")


def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    return {name: version(name) for name in packages}


def show(rows: dict[str, dict[str, Any]]) -> None:
    """Print the share, and every type that is not clean with its reason."""
    for name, row in sorted(rows.items(), key=lambda item: item[1]["stage"]):
        if row["stage"] != "clean":
            reason = row.get("reason") or ", ".join(row["unsupported"])
            print(f"{name:32} {row['stage']:8} {reason[:160]}")
    clean = sum(row["stage"] == "clean" for row in rows.values())
    print(f"{clean} of {len(rows)} types with a clean census ({len(model_types())} are known)")


def run_all(rows: dict[str, dict[str, Any]], names: list[str], options: Any) -> int:
    """Run those of NAMES that are clean, print a line each, and add what is found to ROWS."""
    failed = 0
    for name in names:
        row = rows[name]
        if row["stage"] != "clean":
            continue
        if "run" not in row or options.again:
            row["run"] = in_a_child(lambda name: run(name, rows[name]), name, options.seconds)
            row["run"] |= {"versions": _versions(APART)} if options.apart else {}
            save(rows, options.out)
        found = row["run"]
        failed += found["stage"] not in RIGHT
        figures = " ".join(f"{it} {found[it]:.2g}" for it in FIGURES if it in found)
        print(
            f"{name:32} {found['stage']:8} {figures} {found.get('values', '')} {found.get('reason', '')}",
            flush=True,
        )
    return 1 if failed else 0


def main() -> int:
    """Measure what was asked for and has not been, and say what is clean."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("types", metavar="TYPE", nargs="*")
    parser.add_argument(
        "--sample", type=int, help="so many types, chosen at random, always the same"
    )
    parser.add_argument("--seconds", type=float, default=120, help="at most, for one type")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument(
        "--apart",
        action="store_true",
        help="say in the rows with which versions they were measured",
    )
    parser.add_argument(
        "--run",
        action="store_true",
        help="run what is clean against PyTorch, small and with weights",
    )
    parser.add_argument("--again", action="store_true", help="measure what is there, too")
    options = parser.parse_args()
    names = options.types or model_types()
    if not options.types:  # in an order of chance: what is measured so far is a fair sample
        names = random.Random(0).sample(names, options.sample or len(names))
    rows = load(options.out)
    if options.run:
        return run_all(rows, names, options)
    for name in names:
        if name not in rows or options.again:
            rows[name] = counted(name, options.seconds)
            rows[name] |= {"versions": _versions(APART)} if options.apart else {}
            save(rows, options.out)
            print(name, rows[name]["stage"], rows[name].get("reason", ""), flush=True)
    show({name: rows[name] for name in names})
    return 0 if sum(row["stage"] == "clean" for row in rows.values()) >= BAR * len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
