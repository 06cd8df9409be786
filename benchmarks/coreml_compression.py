"""Compress a package in every combination, read it back, and check it by the command line.

    python benchmarks/coreml_compression.py

Each package has to expand to what coremltools itself decompresses it to, bit for bit, and to pass its check against
the module that it was exported from.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from click.testing import CliRunner

from weighbridge.cli import main as weighbridge
from weighbridge.converters.captures.mlprogram import load_program
from weighbridge.converters.captures.mlprogram.toolkit import coremltools, quiet
from weighbridge.converters.coreml.compress import compress_package, costs
from weighbridge.converters.coreml.compression import TABLES, Compression
from weighbridge.converters.coreml.export import export_coreml
from weighbridge.tests.support.coreml import modules

RESULTS: Final = Path(__file__).with_name("results") / "coreml_compression.json"
SOURCE: Final = f"{modules.__name__}:heads32"
TRIAL: Final = [{"ids": np.arange(12)[None]}]


def combinations() -> Iterator[Compression]:
    """Yield every way to compress."""
    for prune in (None, 0.4):
        if prune:
            yield Compression(prune)
        for quantize, block in (("int8", None), ("int8", 32), ("int4", None), ("int4", 16)):
            yield Compression(prune, None, quantize, block)
        for bits in TABLES:
            yield Compression(prune, bits)
        for bits in (4, 6, 8):  # a table of fewer entries is smaller than what int8 saves of it
            yield Compression(prune, bits, "int8")


def decompressed(package: Path, folder: Path) -> dict[str, Any]:
    """Return the matrices of PACKAGE as coremltools itself decompresses them, in their order."""
    with quiet():
        import coremltools.optimize.coreml as optimize

        model = coremltools.models.MLModel(str(package), skip_model_load=True)
        optimize.decompress_weights(model).save(str(folder / "dense.mlpackage"))
    constants = load_program(folder / "dense.mlpackage").constants()
    return {name: it for name, it in constants.items() if it.ndim > 1}


def status(package: Path) -> str:
    """Return what a quick check of PACKAGE says."""
    words = ["parity", "check", SOURCE, str(package), "--quick", "--json"]
    result = CliRunner().invoke(weighbridge, words)
    return str(json.loads(result.stdout).get("status"))


def row(plain: Path, way: Compression, folder: Path) -> dict[str, Any]:
    """Return what becomes of the package PLAIN, compressed in one WAY."""
    package = Path(shutil.copytree(plain, folder / "compressed.mlpackage"))
    compress_package(package, way)
    program = load_program(package)
    own = [it for name, it in program.constants().items() if name in program.compressed()]
    theirs = [*decompressed(package, folder).values()]
    exact = len(own) == len(theirs) and all(map(np.array_equal, own, theirs))
    found = costs(plain, package, TRIAL)
    about = {"bytes": found["compressed"]["bytes"], "weights": found["compressed"]["error"]["mean"]}
    return {**about, "outputs": found["outputs"], "reads_back": exact, "check": status(package)}


def main() -> None:
    """Print every combination and keep it."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        plain = Path(place) / "plain.mlpackage"
        export_coreml(*modules.heads32(), plain)
        for way in combinations():
            with tempfile.TemporaryDirectory() as folder:
                found[str(way)] = it = row(plain, way, Path(folder))
            print(f"{way!s:44} {it['reads_back']} {it['check']}", flush=True)
            if len(sys.argv) == 1:
                RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    right = [it["reads_back"] and it["check"].startswith("PASS") for it in found.values()]
    print(f"{sum(right)} of {len(found)} read back and pass")


if __name__ == "__main__":
    main()
