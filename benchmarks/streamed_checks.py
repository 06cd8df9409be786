"""Convert large Llamas with their checks: peak memory, and processor time against no check.

    python benchmarks/streamed_checks.py [--size small large] [--levels none quick full] [--folder DIR]

``small`` is a Llama of 1 GB, ``large`` one of 13.5 GB with the shape of a 7B; bfloat16, random weights
of realistic gain. Each is converted without a check, with the default (quick) one and with
``--check full``, or with those of ``--levels``. In the last conversion's copy one layer is damaged, which a quick check must name. The peak
is the largest sum of the resident memory of all processes, looked at every 20 ms. Models are made
in DIR and removed. Writes ``results/streamed_checks.json``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import ml_dtypes
import numpy as np
import psutil

from weighbridge.converters.checkpoints import Header, Writer, open_checkpoint
from weighbridge.tests.support.large_models import KINDS, Kind, layout_of
from weighbridge.tests.support.side_by_side import machine

RESULT: Final = Path(__file__).parent / "results" / "streamed_checks.json"
NOISE: Final = 1 << 25  # numbers that are used again, from another place on for each tensor
DAMAGED: Final = "mlp.down_proj.weight"
SEVEN: Final = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
}


LEVELS: Final = ("none", "quick", "full")


class Size(NamedTuple):
    """A model and what its default check may take: bytes, and processor time against no check."""

    layers: int
    changes: dict[str, Any]
    peak: float
    times: float
    full: float


SIZES: Final = {
    "small": Size(9, {}, 1.2e9, 12, 2),
    "large": Size(32, SEVEN, 2.5e9, 12, 4),
}


class Run(NamedTuple):
    """One command: exit code, seconds, processor seconds, peak bytes, and what it printed."""

    code: int
    seconds: float
    processor: float
    peak: int
    output: str


def values(noise: dict[int, memoryview], number: int, header: Header) -> Iterator[memoryview]:
    """Yield the bytes of a tensor: a norm near one, a matrix of gain 1.5."""
    fan_in = header.shape[-1] if len(header.shape) > 1 else 0
    block, done = noise[fan_in], 0
    start = number * 8198 % (NOISE // 2)
    while done < header.nbytes:
        piece = block[start : start + min(NOISE, header.nbytes - done)]
        yield piece
        done += piece.nbytes


def make(folder: Path, size: Size) -> int:
    """Write the model of SIZE into FOLDER; return its bytes."""
    kind = Kind(KINDS["llama"].config | size.changes, KINDS["llama"].layer, "")
    layout = layout_of(kind, size.layers)
    normal = np.random.default_rng(0).standard_normal(NOISE, np.float32)
    noise = {0: (1 + 0.1 * normal).astype(ml_dtypes.bfloat16).view(np.uint8).data}
    for fan_in in {header.shape[-1] for header in layout.values() if len(header.shape) > 1}:
        scaled = (1.5 * fan_in**-0.5 * normal).astype(ml_dtypes.bfloat16)
        noise[fan_in] = scaled.view(np.uint8).data
    folder.mkdir()
    writer = Writer(folder, layout, metadata={"format": "pt"}, max_shard_size=5_000_000_000)
    for number, (name, header) in enumerate(layout.items()):
        writer.write(name, values(noise, number, header))
    writer.close()
    config = kind.config | {"num_hidden_layers": size.layers}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return sum(header.nbytes for header in layout.values())


def watch(process: psutil.Popen) -> int:
    """Return the largest sum of the resident memory of PROCESS and its children until it ends."""
    peak = 0
    while process.poll() is None:
        total = 0
        for one in (process, *process.children(recursive=True)):
            try:
                total += one.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        peak = max(peak, total)
        time.sleep(0.02)
    return peak


def run(*words: object) -> Run:
    """Run the command line."""
    with tempfile.TemporaryFile("w+") as output:
        start, before = time.perf_counter(), children_seconds()
        process = psutil.Popen(
            [sys.executable, "-m", "weighbridge", *map(str, words)], stdout=output, stderr=output
        )
        peak = watch(process)
        output.seek(0)
        took = time.perf_counter() - start, children_seconds() - before
        return Run(process.returncode, *took, peak, output.read())


def children_seconds() -> float:
    """Return the processor time of all children that have ended."""
    times = psutil.Process().cpu_times()
    return float(times.children_user + times.children_system)


def damage(folder: Path, layer: int) -> str:
    """Exchange a row of zeros for one row of a weight in LAYER of the model in FOLDER; return its name."""
    name = f"model.layers.{layer}.{DAMAGED}"
    for file in open_checkpoint(folder).files:
        with file.open("r+b") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(length))
            if name in header:
                stream.seek(8 + length + header[name]["data_offsets"][0])
                stream.write(bytes(header[name]["shape"][1] * 2))
    return name


def measured(folder: Path, size: Size, levels: Sequence[str]) -> dict[str, Any]:
    """Return the figures of a model of SIZE, converted at each of LEVELS."""
    source, runs = folder / "source", {}
    nbytes = make(source, size)
    for check in levels:
        shutil.rmtree(folder / "out", ignore_errors=True)
        words = ("convert", "torch-to-mlx", source, folder / "out", "--check", check)
        runs[check] = run(*words)
        print(check, runs[check]._replace(output=runs[check].output[-2000:]), flush=True)
    name = damage(folder / "out", size.layers // 2)
    found = run("parity", "check", source, folder / "out", "--quick")
    quick, full = runs["quick"], runs.get("full")
    return {
        "gigabytes": nbytes / 1e9,
        "runs": {check: it._replace(output="")._asdict() for check, it in runs.items()},
        "peak_of_bar": quick.peak / size.peak,
        "processor_ratio": quick.processor / runs["none"].processor,
        "full_of_quick": full.seconds / quick.seconds if full else None,
        "bars": {"peak": size.peak, "processor": size.times, "full": size.full},
        "damage_named": found.code == 1 and name in found.output.replace("\n", ""),
        "damaged_check": found._replace(output="")._asdict(),
    }


def main() -> None:
    """Measure, print and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", nargs="+", default=list(SIZES), choices=SIZES)
    parser.add_argument("--levels", nargs="+", default=LEVELS, choices=LEVELS)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    rows = json.loads(RESULT.read_text())["sizes"] if RESULT.is_file() else {}
    for size in arguments.size:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            rows[size] = measured(Path(folder), SIZES[size], arguments.levels)
        print(size, json.dumps(rows[size], indent=1), flush=True)
        document = {"sizes": rows, "machine": machine()}
        RESULT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
