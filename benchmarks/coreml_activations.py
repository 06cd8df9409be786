"""MiniLM and small random models as packages in 8 bits, weights alone and activations too: sizes and errors, in one run.

    python benchmarks/coreml_activations.py [NAME ...]

Both are exported by the command line and checked. What is printed, and kept in
``results/coreml_activations.json``, is the size of each package beside the plain one and how far its output
moves on a check's short inputs, by our evaluator.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from click.testing import CliRunner

from weighbridge.cli import main as weighbridge
from weighbridge.tests.support.coreml.families import MINILM, source
from weighbridge.tests.support.coreml.models import make

RESULTS: Final = Path(__file__).with_name("results") / "coreml_activations.json"
WIDE: Final = {
    "hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4
}  # fmt: skip
# Random models with weights that are large enough to be quantized.
LARGER: Final = {
    "BERT": WIDE,
    "ViT": WIDE | {"image_size": 32},
}
NAMES: Final = (MINILM, *LARGER)
WAYS: Final = {
    "weights": ("--quantize", "int8"),
    "weights and activations": ("--quantize", "int8", "--activations", "int8"),
}


def row(model: str, options: tuple[str, ...], target: Path) -> dict[str, Any]:
    """Export MODEL to TARGET with OPTIONS; return its size, the plain package's, what moves, and the verdict."""
    words = ["export", "coreml", model, str(target), *options, "--json"]
    said = json.loads(CliRunner().invoke(weighbridge, words).stdout)
    sizes = said["facts"]["compressed"]["bytes"]
    return {"bytes": sizes, "moved": said["facts"]["outputs"], "status": said["verdict"]["status"]}


def rows(name: str) -> dict[str, Any]:
    """Return and print a row of the model NAME for each way."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        larger = LARGER.get(name)
        model = (
            str(make(name, Path(folder) / name, **larger)) if larger else source(name, Path(folder))
        )
        for number, (way, options) in enumerate(WAYS.items()):
            found[way] = it = row(model, options, Path(folder) / f"{number}.mlpackage")
            part = it["bytes"]["after"] / it["bytes"]["before"]
            moved = ", ".join(f"{output} by {by:.2g}" for output, by in it["moved"].items())
            print(
                f"{name}, {way}: {part:.2f} of the size; moves {moved}; {it['status']}", flush=True
            )
    return found


def main() -> None:
    """Print rows of the models named on the command line, or of all, and keep them."""
    found = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    for name in sys.argv[1:] or NAMES:
        found[name] = rows(name)
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
