"""Export rotary models in mixed precision and compare them with torch's float16 at every position.

    python benchmarks/coreml_positions.py [NAME ...]

Errors are against the source in float64; agreement is how often the largest logit is the same one.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np

from weighbridge.converters.captures.mlprogram import load_program
from weighbridge.converters.coreml.export import export_coreml
from weighbridge.converters.planning.opening import open as open_model
from weighbridge.converters.runtimes.torch import build_module
from weighbridge.parity.probes.probes import Probe, make_probes
from weighbridge.parity.reference.reference import (
    float64_module,
    float64_outputs,
    module_outputs,
    narrow_module,
)
from weighbridge.tests.support.coreml.models import make

RESULTS: Final = Path(__file__).with_name("results") / "coreml_positions.json"
RANGES: Final = ((0, 16), (128, 512), (1024, 2048))
PRECISIONS: Final = ("mixed", "float16")
NAMES: Final = ("Llama", "Qwen3", "Gemma", "Gemma 3", "ModernBERT")


def figures(found: np.ndarray, wanted: np.ndarray) -> list[tuple[float, float]]:
    """Return error and agreement of outputs (1, sequence, features) in each range of positions."""
    rows = []
    for first, last in RANGES:
        one, other = (np.asarray(it, np.float64)[:, first:last] for it in (found, wanted))
        agree = float((one.argmax(-1) == other.argmax(-1)).mean())
        rows.append((float(np.linalg.norm(one - other) / np.linalg.norm(other)), agree))
    return rows


def measured(name: str, folder: Path) -> dict[str, Any]:
    """Return the figures of torch's float16 and of packages of the model NAME."""
    sizes = {"max_position_embeddings": 2048}
    model = open_model(str(make(name, folder / "source", **sizes)))
    *_, probe = make_probes(model.signature, tokenizer=None, quick=True, reach=2048)
    port = model.signature.outputs[0].name
    signature, probes = model.signature, [Probe("far", probe.inputs)]
    wanted = float64_outputs(float64_module(model), signature, probes)[0][port]
    half = narrow_module(model, "float16")
    (own,) = module_outputs(half, signature, probes, "float16")
    rows = {"torch": figures(own[port], wanted)}
    for compute in PRECISIONS:
        path = folder / f"{compute}.mlpackage"
        export_coreml(build_module(model), signature, path, compute=compute)
        rows[compute] = figures(load_program(path).run(probe.inputs)[port], wanted)
    return rows


def main() -> None:
    """Print the figures of the models named on the command line, or of all."""
    found = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    for name in sys.argv[1:] or NAMES:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = measured(name, Path(folder))
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
        for precision, rows in found[name].items():
            told = "  ".join(f"{error:.2g} {agree:.4f}" for error, agree in rows)
            print(f"{name:12} {precision:8} {told}", flush=True)


if __name__ == "__main__":
    main()
