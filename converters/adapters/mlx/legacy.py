"""Adapters as older programs wrote them for MLX, with less recorded beside them.

- mlx-vlm's first trainer: ``A`` and ``B``, ``{"rank", "alpha", "dropout"}``
  (``mlx_vlm/trainer/peft/lora.py``, class ``LoRaLayer``).
- the examples of MLX: ``adapters.npz`` with ``lora_a`` and ``lora_b``, and no configuration
  (``mlx-examples``, ``lora/models/lora.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ...checkpoints import Checkpoint
from ...checkpoints.open import open_checkpoint
from ..adapter import Adapter
from ..config import Config, number, whole_number
from ..pairing import Dialect, Terms, group
from .reader import DIALECT, read_tensors

NPZ: Final = "adapters.npz"
VLM: Final = Dialect("mlx-vlm", "", {"a": ".A", "b": ".B"})
ALPHA: Final = 0.1  # mlx-vlm's, where the configuration has none
SCALE: Final = 20.0  # of the examples; those of December 2023 had 2.0
RANK: Final = 8  # of the examples
VLM_NOTE: Final = (
    "scale {scale:g} is alpha / rank, as mlx-vlm 0.7 reads these files; its first versions multiplied"
    " by alpha itself"
)
NPZ_NOTE: Final = (
    "nothing says the scale: {scale:g} is that of mlx-examples from January 2024 on (2 before)."
    ' If it was another, say so in adapter_config.json: {{"lora_parameters": {{"scale": ...}}}}'
)


def read_vlm(folder: Path, tensors: Path, config: Config) -> Adapter:
    """Read an adapter of mlx-vlm's first trainer.

    Raises:
        BadInputError: the configuration lacks the rank.
        MismatchError: the tensors are not a whole adapter.
    """
    rank = whole_number(config, "rank")
    scale = number({"alpha": ALPHA, **config}, "alpha") / rank
    terms = Terms(rank, scale, magnitude=False)
    updates, saved = read_tensors(open_checkpoint(tensors), VLM, terms)
    notes = (VLM_NOTE.format(scale=scale),)
    return Adapter(folder, "mlx-vlm", updates, config, saved, notes=notes)


def read_npz(folder: Path, tensors: Path, config: Config) -> Adapter:
    """Read an adapter of the old examples; CONFIG is empty where there is none.

    Raises:
        BadInputError: CONFIG says a scale that is none.
        MismatchError: the tensors are not a whole adapter.
    """
    section = config.get("lora_parameters")
    given = section if isinstance(section, Mapping) else {}
    checkpoint = open_checkpoint(tensors)
    scale = float(number({"scale": SCALE, **given}, "scale"))
    rank = whole_number(given, "rank") if "rank" in given else _rank(checkpoint)
    updates, saved = read_tensors(checkpoint, DIALECT, Terms(rank, scale, magnitude=False))
    notes = () if "scale" in given else (NPZ_NOTE.format(scale=scale),)
    parameters = {**given, "rank": rank, "scale": scale}
    config = {**config, "lora_parameters": parameters}
    return Adapter(folder, "npz", updates, config, saved, notes=notes)


def _rank(checkpoint: Checkpoint) -> int:
    """Return the rank of the first update in CHECKPOINT, which says it nowhere else."""
    shapes = (
        checkpoint.headers[halves["a"]].shape
        for halves in group(checkpoint.headers, DIALECT).modules.values()
        if "a" in halves
    )
    return next((shape[-1] for shape in shapes if shape), RANK)
