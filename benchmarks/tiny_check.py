"""Measure a check of a tiny model in a warm process against one float64 forward of its source.

    python benchmarks/tiny_check.py [--repeat 7]

The models are the tiny Llama and BERT of ``fixtures/``, converted to MLX. The check is the default one
of ``weighbridge convert``. ``forward`` is the source's float64 module, built before, called once on the
check's own probe; ``opened`` builds it first, weights read. Times are of the processor, user and
system, of this process, which has done each once before. Writes ``results/tiny_check.json``.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from weighbridge import fixtures
from weighbridge.converters.models import Model
from weighbridge.converters.runtimes.blas import preload_blas
from weighbridge.tests.support.side_by_side import machine

RESULT: Final = Path(__file__).parent / "results" / "tiny_check.json"
MODELS: Final = ("llama", "bert")
BAR: Final = 20


def processor() -> float:
    """Return the processor seconds that this process has taken."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def median(repeat: int, what: Callable[[], Any]) -> float:
    """Return the median processor time of REPEAT calls of WHAT after one that counts for nothing."""
    what()
    times = []
    for _ in range(repeat):
        before = processor()
        what()
        times.append(processor() - before)
    return statistics.median(times)


def forwards(source: Model) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return one float64 forward of SOURCE, and the same with its opening."""
    from weighbridge.parity.goldens.recorder import text_folder
    from weighbridge.parity.probes.probes import make_probes
    from weighbridge.parity.reference.reference import float64_module, float64_outputs

    probes = make_probes(source.signature, tokenizer=text_folder(source), quick=True)[:1]
    module = float64_module(source)
    return (
        lambda: float64_outputs(module, source.signature, probes),
        lambda: float64_outputs(float64_module(source), source.signature, probes),
    )


def measured(kind: str, folder: Path, repeat: int) -> dict[str, float]:
    """Return the figures of the fixture KIND, converted into FOLDER."""
    from weighbridge.converters.planning.opening import open as open_model
    from weighbridge.jobs.api import check, convert

    source, target = Path(fixtures.__file__).parent / kind / "model", folder / kind
    convert(source, target, to="mlx", check="none")
    verdict = check(source, target, quick=True)
    if verdict.status != "PASS":
        raise SystemExit(f"{kind}: {verdict.status}")
    forward, opened = (median(repeat, it) for it in forwards(open_model(source)))
    took = median(repeat, lambda: check(source, target, quick=True))
    return {"check": took, "forward": forward, "opened": opened, "ratio": took / forward}


def main() -> None:
    """Measure, print and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=7)
    repeat = parser.parse_args().repeat
    preload_blas()
    with tempfile.TemporaryDirectory() as folder:
        rows = {kind: measured(kind, Path(folder), repeat) for kind in MODELS}
    document = {"models": rows, "bar": BAR, "repeat": repeat, "machine": machine()}
    print(json.dumps(document, indent=1))
    RESULT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
