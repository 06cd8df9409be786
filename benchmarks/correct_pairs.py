"""Check correct pairs: how many does a check reject, and what does that prove?

    python benchmarks/correct_pairs.py [--rows FILE] [--blas torch|wheel] [--part NUMBER OF] [--out FILE]

- Conversions: every type of the atlases whose classes in MLX compute what transformers does (mended where the
  catalogue of repairs says that its configuration needs it), and every fixture (captured, or run by a class of
  ours), in three dtypes; with BLAS of the wheel, the fixtures.
- Copies in PyTorch of the fixtures, in three dtypes.
- Implementations of random encoders from 64 to 4,096 wide and of convolutional networks: PyTorch's fused
  attention, ATen's own kernels, one thread, row by row, batches in two halves and in reverse, captured.

A pair that is rejected is a false DIFFERS. Of N distinct correct pairs without a rejection, at most 3/N are
rejected at 95 % confidence, for pairs like these (rule of three). Rows are appended to FILE; those in it
are not measured again.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from null_cases import ConvNet, encoder
from torch import nn

from weighbridge.converters.models import Model, Port, Signature
from weighbridge.converters.models import open as open_model
from weighbridge.converters.models.families import encoder_signature
from weighbridge.converters.models.model_files import repairable
from weighbridge.converters.runtimes.blas import preload_blas
from weighbridge.jobs import Options, convert
from weighbridge.jobs.checking import compare
from weighbridge.jobs.repairing import reading
from weighbridge.parity.check.check import check
from weighbridge.parity.check.verdict import Verdict
from weighbridge.tests.support.planted.sources import FIXTURES, source

RESULTS: Final = Path(__file__).with_name("results") / "correct_pairs.json"
ATLAS: Final = Path(__file__).with_name("results") / "atlas.json"
SEEING: Final = ATLAS.with_name("atlas_mlx_vlm.json")  # reads those with towers
DTYPES: Final = ("float32", "bfloat16", "float16")
WIDTHS: Final = {64: 4, 128: 3, 256: 3, 512: 2, 1024: 1, 2048: 1, 4096: 1}  # width -> models
CAPTURED: Final = (
    512  # the widest that is captured: recording a graph, and the wheel's BLAS, are slow
)
PIXELS: Final = Port("pixels", "float32", ("batch", 3, 48, 48), "pixels")
FEATURES: Final = Port("features", "float32", ("batch", 40, 24, 24), "")


class Pair(NamedTuple):
    """A source and a candidate that computes the same.

    Attributes:
        name: what tells it from the others.
        judged: checks it, in a folder of its own.
    """

    name: str
    judged: Callable[[Path], Verdict]


class Split(nn.Module):
    """A module that sees a batch in parts."""

    def __init__(self, module: nn.Module, rows: int) -> None:
        super().__init__()
        self.module, self.rows = module, rows

    def forward(self, *given: torch.Tensor, **inputs: torch.Tensor) -> torch.Tensor:
        """Return the first output of all parts, in order."""
        names, values = [*inputs], [*given, *inputs.values()]
        parts = zip(
            *(value.split(self.rows or (len(value) + 1) // 2) for value in values), strict=True
        )
        outs = [
            first(
                self.module(
                    *part[: len(given)], **dict(zip(names, part[len(given) :], strict=True))
                )
            )
            for part in parts
        ]
        return torch.cat(outs)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's own names."""
        return self.module.state_dict(*args, **kwargs)


class Reversed(Split):
    """A module that sees a batch in reverse."""

    def forward(self, *given: torch.Tensor, **inputs: torch.Tensor) -> torch.Tensor:
        """Return the first output, in the order of the inputs."""
        turned = {name: value.flip(0) for name, value in inputs.items()}
        return first(self.module(*(value.flip(0) for value in given), **turned)).flip(0)


class Under(Split):
    """A module that runs under other settings of PyTorch."""

    def __init__(self, module: nn.Module, settings: str) -> None:
        super().__init__(module, 0)
        self.settings = settings

    def forward(self, *given: torch.Tensor, **inputs: torch.Tensor) -> torch.Tensor:
        """Return the first output."""
        if self.settings == "ATen's own kernels":
            with torch.backends.mkldnn.flags(enabled=False):
                return first(self.module(*given, **inputs))
        threads = torch.get_num_threads()
        torch.set_num_threads(3 - min(threads, 2))  # one for two, two for one
        try:
            return first(self.module(*given, **inputs))
        finally:
            torch.set_num_threads(threads)


def first(out: Any) -> torch.Tensor:
    """Return the first output of a module."""
    return out if isinstance(out, torch.Tensor) else out[0]


def fused(module: nn.Module) -> nn.Module:
    """Return MODULE with PyTorch's fused attention."""
    module.set_attn_implementation("sdpa")  # type: ignore[operator]
    return module


IMPLEMENTATIONS: Final[Mapping[str, Callable[[nn.Module], nn.Module]]] = {
    "as it is": lambda module: module,
    "fused attention": fused,
    "ATen's own kernels": lambda module: Under(module, "ATen's own kernels"),
    "another number of threads": lambda module: Under(module, "threads"),
    "row by row": lambda module: Split(module, 1),
    "in two halves": lambda module: Split(module, 0),
    "in reverse": lambda module: Reversed(module, 0),
}


def live(module: nn.Module, signature: Signature, name: str, runtime: str) -> Verdict:
    """Check the implementation NAME of MODULE, or its capture where the RUNTIME is mlx."""
    changed = IMPLEMENTATIONS[name](copy.deepcopy(module))
    source_, candidate = (
        Model(spec, "torch", None, {}, factory=it, declared=signature)
        for spec, it in (("source", module), (name, changed))
    )
    return check(source_, candidate, runtime=runtime, quick=True)


def modules() -> Iterator[tuple[str, int, Callable[[], tuple[nn.Module, Signature]]]]:
    """Yield random models: name, width and what makes one."""
    for width, count in WIDTHS.items():
        for seed in range(count):
            sizes = {"vocab_size": 2000, "hidden_size": width}
            yield (
                f"encoder {width} {seed}",
                width,
                lambda width=width, seed=seed, sizes=sizes: (  # type: ignore[misc]
                    encoder(width, seed),
                    encoder_signature(sizes),
                ),
            )
    for seed in range(4):
        signature = Signature((PIXELS,), (FEATURES,))
        yield f"convolutions {seed}", 24, lambda seed=seed, it=signature: (ConvNet(seed).eval(), it)  # type: ignore[misc]


def implementations() -> Iterator[Pair]:
    """Yield pairs of modules."""
    for name, width, made in modules():
        for how in IMPLEMENTATIONS:
            if how == "fused attention" and "encoder" not in name:
                continue
            yield Pair(f"{name}: {how}", lambda _, it=made, how=how: live(*it(), how, "torch"))  # type: ignore[misc]
        if width <= CAPTURED:
            yield Pair(f"{name}: captured", lambda _, it=made: live(*it(), "as it is", "mlx"))  # type: ignore[misc]


def converted(kind: str, dtype: str, to: str, folder: Path) -> Verdict:
    """Check a conversion of KIND, its weights kept in DTYPE, or a copy of it where TO is torch."""
    made, candidate = source(kind, folder / "source", dtype=dtype), folder / "candidate"
    if to == "mlx":
        model = open_model(made)
        repair = not (FIXTURES / kind).is_dir() and repairable(model.config, reading(model))
        convert(str(made), candidate, to, options=Options(check="none", repair=repair))
    else:
        candidate = source(kind, candidate, dtype=dtype)
    return compare(open_model(made), open_model(candidate))


def conversions(kinds: list[str], to: str) -> Iterator[Pair]:
    """Yield conversions of KINDS, in every dtype."""
    for kind in kinds:
        for dtype in DTYPES:
            about = (kind, dtype, to)
            yield Pair(f"{kind} {dtype} to {to}", lambda folder, it=about: converted(*it, folder))  # type: ignore[misc]


def pairs(blas: str) -> Iterator[Pair]:
    """Yield all pairs."""
    rows = json.loads(ATLAS.read_text())["rows"]
    right = {it["kind"] for it in rows if it["status"] == "pass" and it["layout"] == "saved"}
    right -= {it["kind"] for it in json.loads(SEEING.read_text())["rows"] if it["status"] != "pass"}
    fixtures = sorted(it.name for it in FIXTURES.iterdir() if (it / "model").is_dir())
    yield from conversions(fixtures, "mlx")
    yield from implementations()
    if blas == "torch":
        yield from conversions(sorted(right - {*fixtures}), "mlx")
        yield from conversions(fixtures, "torch")


def row(pair: Pair, blas: str) -> dict[str, Any]:
    """Return what a check says of PAIR."""
    start = time.process_time()
    about = {"pair": pair.name, "blas": blas}
    with tempfile.TemporaryDirectory() as folder:
        try:
            verdict = pair.judged(Path(folder))
        except Exception as error:
            said = f"{type(error).__name__}: {error}"[:200]
            return {**about, "status": "not run", "says": [said]}
    wrong = [it for it in verdict.stages if it.status in ("fail", "unverified")]
    shares = [
        float(it["allowed"])
        for stage in verdict.stages
        if stage.name in ("structure", "precision")
        for it in stage.figures.get("rows", ())
    ]
    return {
        **about,
        "status": verdict.status,
        "by": [it.name for it in wrong],
        "upstream": verdict.upstream,
        "share": round(max(shares, default=0.0), 3),
        "says": [it.detail.replace(f"{folder}/", "")[:200] for it in wrong],
        "seconds": round(time.process_time() - start, 1),
    }


def rows_in(file: Path) -> list[dict[str, Any]]:
    """Return the rows in FILE."""
    return [json.loads(it) for it in file.read_text().splitlines()] if file.is_file() else []


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what is kept: counts, the bound, and every pair that did not pass."""
    judged = [it for it in rows if it["status"] != "not run"]
    rejected = [it for it in judged if it["status"] == "DIFFERS"]
    passed = [it for it in judged if it["status"].startswith("PASS")]
    count = len(passed) + len(rejected)
    return {
        "judged": count,
        "rejected": len(rejected),
        "rejected at most, 95 %": round(3 / count, 4) if count and not rejected else None,
        "statuses": dict(Counter(it["status"] for it in rows)),
        "largest share of the allowed error": max((it["share"] for it in passed), default=0),
        "not passed": [it for it in rows if not it["status"].startswith("PASS")],
    }


def main() -> None:
    """Measure what FILE lacks, print each row, keep the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=Path, default=RESULTS.with_suffix(".jsonl"))
    parser.add_argument("--blas", choices=("torch", "wheel"), default="torch")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--part", nargs=2, type=int, default=(0, 1))
    options = parser.parse_args()
    if options.blas == "torch":
        preload_blas()
    done = {(it["pair"], it["blas"]) for it in rows_in(options.rows)}
    for number, pair in enumerate(pairs(options.blas)):
        mine = number % options.part[1] == options.part[0]
        if not mine or (pair.name, options.blas) in done:
            continue
        found = row(pair, options.blas)
        with options.rows.open("a") as file:
            file.write(json.dumps(found) + "\n")
        print(f"{pair.name:44} {found['status']:10} {found.get('share')}", flush=True)
    figures = summary(rows_in(options.rows))
    print(json.dumps({it: figures[it] for it in figures if it != "not passed"}, indent=1))
    options.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
