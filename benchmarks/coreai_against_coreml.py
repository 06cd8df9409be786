"""Export families as Core ML package and as Core AI asset, and compare both runtimes with each other.

    python benchmarks/coreai_against_coreml.py [NAME ...]

The package runs in our evaluator, the asset in Apple's runtime: two implementations that share no code. Both
are in float32. Printed and written to ``results/coreai_against_coreml.json`` is the distance between
their outputs, and each one's from float64, over the distance of the source's own float32.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Final

import numpy as np

from weighbridge.converters.coreai_export import export_coreai
from weighbridge.converters.coreml.export import export_coreml
from weighbridge.converters.models import open as open_model
from weighbridge.converters.runtimes import load
from weighbridge.jobs.export import merged_in_memory
from weighbridge.parity.check.distances import distance
from weighbridge.parity.probes.probes import make_probes
from weighbridge.parity.reference.reference import (
    float32_module,
    float64_module,
    float64_outputs,
    module_outputs,
)
from weighbridge.tests.support.coreml.families import source

RESULTS: Final = Path(__file__).with_name("results") / "coreai_against_coreml.json"
NAMES: Final = ("BERT", "T5 encoder", "GPT-2", "Llama", "Gemma 2", "ViT", "ResNet", "gated GPT")


def compared(name: str, folder: Path) -> dict[str, float]:
    """Return the distances of the family NAME, the largest of its outputs."""
    model = open_model(source(name, folder))
    signature, probes = model.signature, make_probes(model.signature, tokenizer=None, quick=True)
    package, asset = folder / "m.mlpackage", folder / "m.aimodel"
    export_coreml(merged_in_memory(model), signature, package, compute="float32")
    export_coreai(merged_in_memory(model), signature, asset)
    inputs = probes[0].inputs
    ours = load(open_model(str(package)), "reference").run(inputs)
    theirs = load(open_model(str(asset)), "coreai").run(inputs)
    exact = float64_outputs(float64_module(model), signature, probes)[0]
    own = module_outputs(float32_module(model), signature, probes, "float32")[0]
    unit = {it: distance(own[it], exact[it], None).whole for it in exact}
    pairs = {
        "each other": (theirs, ours),
        "Core AI": (theirs, exact),
        "evaluator": (ours, exact),
    }
    return {
        what: round(
            max(distance(a[it], b[it].astype(np.float64), None).whole / unit[it] for it in exact), 2
        )
        for what, (a, b) in pairs.items()
    }


def main() -> None:
    """Compare the families named on the command line, or all."""
    rows = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    for name in sys.argv[1:] or NAMES:
        with tempfile.TemporaryDirectory() as folder:
            rows[name] = compared(name, Path(folder))
        print(f"{name:14}", rows[name], flush=True)
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
