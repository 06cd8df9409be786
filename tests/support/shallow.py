"""Fixtures with their first layer alone: half of what has to be exported and run."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from safetensors.numpy import load_file, save_file

FIXTURES = Path(__file__).parents[2] / "fixtures"
DEEPER = re.compile(r"\.layers?\.[1-9]")


def shallow(name: str, folder: Path) -> Path:
    """Write the model NAME of the fixtures with one layer into FOLDER; return its directory."""
    model = shutil.copytree(FIXTURES / name / "model", folder / name)
    config = json.loads((model / "config.json").read_text()) | {"num_hidden_layers": 1}
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:1]
    (model / "config.json").write_text(json.dumps(config))
    weights = load_file(model / "model.safetensors")
    first = {name: it for name, it in weights.items() if not DEEPER.search(name)}
    save_file(first, model / "model.safetensors", metadata={"format": "pt"})
    return model
