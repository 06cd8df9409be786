"""Measure how far correct implementations err from the source: writes ``parity/reference/floors.json``.

Every implementation here computes the same function, in another order, layout or library. For each
case (a model and its inputs), with errors against a true float64 run,

    r = e_target / e_source        (whole output, and worst token)

Runs of one implementation at one width are a group: a trend with width is no noise. Within a group
log r is taken as normal, with one spread s (nu degrees of freedom) for all widths of an
implementation, and the group's 99.9 % point is bounded from above with 95 % confidence by the
one-sided tolerance factor (noncentral t; Krishnamoorthy and Mathew 2009, section 2.2):

    bound = exp(mean + K s),   K = t'_nu(0.95; delta = z_0.999 sqrt(n)) / sqrt(n)

    k       = the largest bound or observed r of any group, whole output
    k_token = the same for the worst token
    c       = the least value for which every elementary operation (one rounding or a short sum,
              where a source may happen to be exact) satisfies e_target <= k max(e_source, c u)

The 99.9 % point is therefore extrapolated, not observed. Run it on each kind of machine:

    python benchmarks/null_study.py [--quick] [--only RUNTIME] [--keep FOLDER]

It replaces the studies of the keys that it measures and leaves the others; with ``--keep`` it goes on
where an interrupted run in FOLDER stopped. Needs the ``demo`` extra.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("MLX_DISABLE_COMPILE", "1")

import numpy as np
import torch
from null_cases import (
    DECODER_WIDTHS,
    LENGTHS,
    QUICK_DECODERS,
    QUICK_LENGTHS,
    QUICK_WIDTHS,
    WIDTHS,
    Array,
    Case,
    conv_cases,
    decoder_cases,
    family_of,
    is_text,
    pretrained_case,
    random_cases,
    save_case,
)
from null_implementations import DTYPES, SOURCE, work

from weighbridge.converters.common.arrays import from_torch, to_torch
from weighbridge.converters.common.dtypes import unit_roundoff
from weighbridge.converters.runtimes.programs.llama import TABLES
from weighbridge.parity.check.distances import Distance, distance
from weighbridge.parity.reference.floors import FLOORS, floor_key

QUANTILES = (0.5, 0.9, 0.99, 1.0)
CONFIDENCE, POINT = 0.95, 0.999


class Sample(NamedTuple):
    """One correct run: its errors over the source's own."""

    key: str
    implementation: str
    width: int
    whole: float
    worst: float


def start_workers(folder: Path, runtimes: list[tuple[str, str]]) -> None:
    """Run each runtime in a process of its own."""
    for runtime, blas in runtimes:
        command = [sys.executable, __file__, "--worker", runtime, blas, str(folder)]
        start = time.monotonic()
        subprocess.run(command, check=False)  # a missing runtime is not studied, and that is said
        print(f"{runtime} ({blas} BLAS): {time.monotonic() - start:.0f} s", flush=True)


def errors(case: Case, outputs: list[Array]) -> list[Distance]:
    """Return errors per probe."""
    return [
        distance(out, truth, probe.inputs.get("attention_mask"))
        for out, truth, probe in zip(outputs, case.truth, case.probes, strict=True)
    ]


def samples_of(
    key: str, name: str, case: Case, outputs: list[Array], own: list[Distance]
) -> Iterator[Sample]:
    """Yield one sample per probe."""
    for target, source in zip(errors(case, outputs), own, strict=True):
        whole, worst = target.whole / source.whole, target.worst / source.worst
        others = family_of(case) or "convolutions"
        kind = name if is_text(case) else f"{name}, {others}"
        yield Sample(key, kind, case.width, whole, worst)


def saved_outputs(case: Case, file: Path) -> list[Array]:
    """Return what a worker saved."""
    saved = np.load(file)
    return [saved[str(index)] for index in range(len(case.probes))]


def measure(case: Case, folder: Path) -> Iterator[Sample]:
    """Yield the samples of one case in every dtype."""
    for dtype in DTYPES:
        files = sorted(folder.glob(f"*--{dtype}.npz"))
        sources = [file for file in files if f"--{SOURCE}--" in file.name]
        if not sources:
            continue
        own = errors(case, saved_outputs(case, sources[0]))
        for file in files:
            runtime, blas, name, _ = file.stem.split("--")
            if name != SOURCE:
                sums = sums_of(runtime, dtype, case)
                key = floor_key(runtime, "cpu", dtype, sums, "wheel" if blas == "wheel" else "")
                yield from samples_of(key, name, case, saved_outputs(case, file), own)


def tolerance_factor(count: int, freedom: int) -> float:
    """Return K such that mean + K s exceeds the 99.9 % point with 95 % confidence.

    Args:
        count: observations in the mean.
        freedom: degrees of freedom of s.
    """
    from scipy import stats

    shift = stats.norm.ppf(POINT) * math.sqrt(count)
    return float(stats.nct.ppf(CONFIDENCE, freedom, shift) / math.sqrt(count))


def bounds(groups: Mapping[str, list[float]]) -> dict[str, float]:
    """Return the upper confidence bound of the 99.9 % point of each group of one implementation."""
    logs = {name: np.log(np.maximum(ratios, 1e-6)) for name, ratios in groups.items()}
    freedom = max(1, sum(len(values) - 1 for values in logs.values()))
    squares = sum(float(((values - values.mean()) ** 2).sum()) for values in logs.values())
    spread = math.sqrt(squares / freedom)
    return {
        name: math.exp(values.mean() + tolerance_factor(len(values), freedom) * spread)
        for name, values in logs.items()
    }


def group_table(samples: list[Sample]) -> dict[str, dict[str, Any]]:
    """Return figures per implementation and width."""
    groups: dict[str, dict[str, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        groups[sample.implementation][f"{sample.implementation}, width {sample.width}"].append(
            sample
        )
    table = {}
    for members in groups.values():
        whole = bounds({name: [s.whole for s in rows] for name, rows in members.items()})
        worst = bounds({name: [s.worst for s in rows] for name, rows in members.items()})
        for name, rows in members.items():
            table[name] = {
                "cases": len(rows),
                "largest": [max(s.whole for s in rows), max(s.worst for s in rows)],
                "null_99_9": [whole[name], worst[name]],
            }
    return table


def summarise(samples: list[Sample]) -> dict[str, Any]:
    """Return what one key's study found."""
    table = group_table(samples)
    largest = [max(row["largest"][i] for row in table.values()) for i in (0, 1)]
    null = [max(row["null_99_9"][i] for row in table.values()) for i in (0, 1)]
    return {
        "cases": len(samples),
        "k": round_up(max(largest[0], null[0])),
        "k_token": round_up(max(largest[1], null[1])),
        "null_99_9": {"whole": round(null[0], 3), "worst_token": round(null[1], 3)},
        "largest": {"whole": round(largest[0], 3), "worst_token": round(largest[1], 3)},
        "quantiles": {
            part: quantiles([getattr(s, part) for s in samples]) for part in ("whole", "worst")
        },
        "groups": json.loads(json.dumps(table), parse_float=lambda text: round(float(text), 3)),
    }


def quantiles(ratios: list[float]) -> dict[str, float]:
    """Return the observed quantiles of RATIOS."""
    return {str(q): round(float(np.quantile(ratios, q)), 3) for q in QUANTILES}


def round_up(value: float) -> float:
    """Return VALUE with two decimals, never smaller."""
    return math.ceil(value * 100) / 100


SOFTMAX = (
    "xp.exp(x - xp.max(x, -1, keepdims=True))"
    " / xp.sum(xp.exp(x - xp.max(x, -1, keepdims=True)), -1, keepdims=True)"
)


def elementary() -> dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]]:
    """Return torch functions, and the same in terms of an array library ``xp``."""
    return {
        "exp": (torch.exp, "xp.exp(x)"),
        "tanh": (torch.tanh, "xp.tanh(x)"),
        "sigmoid": (torch.sigmoid, "1 / (1 + xp.exp(-x))"),
        "rsqrt": (lambda x: torch.rsqrt(x * x + 1), "1 / xp.sqrt(x * x + 1)"),
        "scale": (lambda x: x / 3, "x * (1 / 3)"),
        "halve": (lambda x: x / 2, "x * 0.5"),
        "mean": (lambda x: x.mean(-1, keepdim=True), "xp.sum(x, -1, keepdims=True) / 64"),
        "square sum": (lambda x: (x * x).sum(-1, keepdim=True), "xp.sum(x * x, -1, keepdims=True)"),
        "softmax": (
            lambda x: torch.softmax(x, -1),
            SOFTMAX,
        ),
    }


def elementary_errors(runtime: str, dtype: str) -> Iterator[tuple[Distance, Distance]]:
    """Yield (target, source) errors of each elementary operation."""
    random = np.random.default_rng(0)
    for function, text in elementary().values():
        x = to_torch(random.normal(size=(256, 64)).astype(np.float32)).to(getattr(torch, dtype))
        truth = from_torch(function(x.double()))
        found = elementary_target(runtime, text, from_torch(x))
        yield distance(found, truth), distance(from_torch(function(x)), truth)


def elementary_target(runtime: str, text: str, x: Array) -> Array:
    """Return the same operation in RUNTIME's library."""
    if runtime == "mlx":
        import mlx.core as mx

        from weighbridge.converters.common.arrays import from_mlx, to_mlx

        return from_mlx(eval(text, {"xp": mx, "x": to_mlx(x)}))
    wide = eval(text, {"xp": np, "x": x.astype(np.float32)})
    return np.asarray(wide).astype(x.dtype)


def least_c(runtime: str, dtype: str, k: float, k_token: float) -> float:
    """Return the least c for which every elementary operation passes."""
    u = unit_roundoff(dtype)
    needed = [0.25]  # one rounding of uniform mantissas errs by about u / 4 on the whole
    for target, source in elementary_errors(runtime, dtype):
        if target.whole > k * source.whole:
            needed.append(target.whole / (k * u))
        if target.worst > k_token * source.worst:
            needed.append(target.worst / (k_token * u))
    return round_up(max(needed))


RUNTIMES = (
    *(("torch", "torch"), ("mlx", "torch"), ("reference", "torch")),
    *(("onnxruntime", "torch"), ("coreai", "torch"), ("llama.cpp", "torch")),
)
# What a runtime sums in, where that is not float32.
SUMS = {("coreai", "float16"): "float16"}


def sums_of(runtime: str, dtype: str, case: Case) -> str:
    """Return what RUNTIME rounds in CASE beside its DTYPE, as its runner's description says."""
    if runtime == "llama.cpp" and family_of(case) in ("gemma", "gpt2"):
        return TABLES
    return SUMS.get((runtime, dtype), "float32")


def study(quick: bool, folder: Path, only: str | None) -> dict[str, Any]:
    """Run everything in FOLDER, or what the runtime ONLY needs, and return the studies by key."""
    widths, lengths = (QUICK_WIDTHS, QUICK_LENGTHS) if quick else (WIDTHS, LENGTHS)
    cases = [] if only == "llama.cpp" else [*random_cases(widths, lengths)]
    cases += [] if only == "llama.cpp" else [*conv_cases(2 if quick else 4)]
    cases += [] if quick or only == "llama.cpp" else [pretrained_case()]
    if only in (None, "llama.cpp"):
        cases += decoder_cases(QUICK_DECODERS if quick else DECODER_WIDTHS, lengths)
    for case in cases:
        save_case(case, folder / case.name)
    runtimes = [*RUNTIMES, *([] if quick else [("mlx", "wheel")])]
    chosen = [("source", "torch"), *(it for it in runtimes if it[0] == only)]
    start_workers(folder, chosen if only else runtimes)
    samples: dict[str, list[Sample]] = defaultdict(list)
    for case in cases:
        for sample in measure(case, folder / case.name):
            samples[sample.key].append(sample)
    return {key: complete(key, rows) for key, rows in sorted(samples.items())}


def complete(key: str, rows: list[Sample]) -> dict[str, Any]:
    """Return a key's study."""
    runtime, _, dtype, *_ = key.split("/")
    found = summarise(rows)
    c = least_c(runtime, dtype, found["k"], found["k_token"])
    return {**found, "c": c, "studied_on": [f"{platform.system()} {platform.machine()}"]}


def versions() -> dict[str, str]:
    """Return versions of what was measured."""
    from importlib import metadata

    names = ("torch", "transformers", "mlx", "numpy", "coremltools", "onnxruntime", "coreai-core")
    return {name: metadata.version(name) for name in names}


def main() -> None:
    """Run the study, or one worker of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small widths only, for a try")
    parser.add_argument("--out", type=Path, default=FLOORS)
    parser.add_argument("--only", choices=[name for name, _ in RUNTIMES], help="of one runtime")
    parser.add_argument("--keep", type=Path, help="folder of runs, to go on after an interruption")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        runtime, blas, folder = options.worker
        work(runtime, blas, Path(folder))
        return
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        studies = study(options.quick, options.keep or Path(temporary), options.only)
    before = json.loads(options.out.read_text()) if options.out.is_file() else {"studies": {}}
    content = {
        "written_by": "benchmarks/null_study.py",
        "versions": versions(),
        "studies": {**before["studies"], **studies},
    }
    options.out.write_text(json.dumps(content, indent=1) + "\n")
    for key, found in studies.items():
        print(
            f"{key}: k {found['k']}, worst token {found['k_token']}, c {found['c']},"
            f" {found['cases']} runs"
        )
    print(f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
