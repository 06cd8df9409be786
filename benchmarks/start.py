"""Measure the processor time of small jobs against that of the imports they cannot do without.

    python benchmarks/start.py [--repeat 5]

The model is the tiny Llama of ``fixtures/``; ``imports`` is ``import torch,
transformers.models.llama.modeling_llama`` in a process of its own. All commands run in turns, each
round with a cache of its own: ``first`` finds it empty, ``second`` and the check do not. Times are of
the processor, user and system, of a command and its children. Writes ``results/start.json``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from weighbridge import fixtures
from weighbridge.tests.support.side_by_side import Run, environment, machine, run

RESULT: Final = Path(__file__).parent / "results" / "start.json"
SOURCE: Final = Path(fixtures.__file__).parent / "llama" / "model"
IMPORTS: Final = "import torch, transformers.models.llama.modeling_llama"
BASE: Final = "imports"
BARS: Final = {"convert, first": 1.3, "convert, second": 1.05, "parity check": 1.05}


def commands(folder: Path) -> dict[str, list[str]]:
    """Return what is measured, by name, in the order of a round; results go to FOLDER."""
    tool = [sys.executable, "-m", "weighbridge"]
    convert = [*tool, "convert", "torch-to-mlx", str(SOURCE)]
    return {
        BASE: [sys.executable, "-c", IMPORTS],
        "convert, first": [*convert, str(folder / "first")],
        "convert, second": [*convert, str(folder / "second")],
        "parity check": [*tool, "parity", "check", str(SOURCE), str(folder / "first")],
        "convert, no check": [*convert, str(folder / "third"), "--check", "none"],
        "inspect": [*tool, "inspect", str(SOURCE)],
        "help": [*tool, "--help"],
    }


def measure(repeat: int) -> Iterator[dict[str, list[Run]]]:
    """Run all commands in turns, REPEAT rounds after one that counts for nothing; yield after each."""
    runs: dict[str, list[Run]] = {}
    with tempfile.TemporaryDirectory() as name:
        variables = environment(Path(name))  # bytecode is kept from round to round
        for number in range(repeat + 1):
            folder = Path(name) / str(number)
            folder.mkdir()
            own = {**variables, "WEIGHBRIDGE_CACHE": str(folder / "cache")}
            for label, command in commands(folder).items():
                found = run(command, own)
                if number:
                    runs.setdefault(label, []).append(found)
            if number:
                yield runs


def summarise(runs: Mapping[str, list[Run]]) -> dict[str, Any]:
    """Return, by command, the median of processor seconds, its ratio to the imports, and all."""
    medians = {
        name: statistics.median(it.processor for it in found) for name, found in runs.items()
    }
    return {
        name: {
            "processor_seconds": round(medians[name], 3),
            "ratio": round(medians[name] / medians[BASE], 3),
            "bar": BARS.get(name),
            "all_seconds": [round(each.processor, 3) for each in found],
        }
        for name, found in runs.items()
    }


def show(results: Mapping[str, Any]) -> None:
    """Print a line for each command."""
    for name, found in results.items():
        bar = f"  (bar {found['bar']})" if found["bar"] else ""
        print(f"{name:18} {found['processor_seconds']:7.3f} s  {found['ratio']:6.3f}{bar}")


def main() -> None:
    """Measure, print and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    for runs in measure(arguments.repeat):
        results = summarise(runs)
        document = {"commands": results, "machine": machine()}
        arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    show(results)


if __name__ == "__main__":
    main()
