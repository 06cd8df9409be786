"""mlx-lm's adapters: ``y + scale * (x @ lora_a) @ lora_b``, one rank and one scale for all.

Format: ``mlx_lm/tuner/utils.py``, ``mlx_lm/tuner/lora.py``; mlx-vlm writes the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Final

from ....errors import BadInputError, UnsupportedError
from ...checkpoints import Checkpoint, Header
from ...checkpoints.open import open_checkpoint
from ...values import Array, LowRank
from ..adapter import Adapter
from ..config import Config, check_entries, check_types, number, whole_number
from ..forms import MLX_LINEAR, MLX_SWITCH, Form
from ..pairing import Dialect, Pair, Terms, group, read_pairs, read_whole, require_tensors

TENSORS: Final = "adapters.safetensors"
DIALECT: Final = Dialect("mlx", "", {"a": ".lora_a", "b": ".lora_b", "magnitude": ".m"})
LORA, DORA, FULL = "lora", "dora", "full"
SWITCH_AXES: Final = 3  # the halves of experts have one more axis


def read_mlx(folder: Path, tensors: Path, config: Config) -> Adapter:
    """Read the adapter of FOLDER, whose CONFIG is read already, from the file TENSORS.

    Raises:
        UnsupportedError: the fine-tuning was of a kind that mlx-lm does not have.
        BadInputError: the configuration lacks rank or scale.
        MismatchError: the tensors are not a whole adapter.
    """
    kind = config.get("fine_tune_type", LORA)
    if kind not in (LORA, DORA, FULL):
        raise UnsupportedError(f"{folder}: fine_tune_type {kind} is not lora, dora or full")
    check_types(config, {"num_layers": (int, NoneType)}, folder)
    if kind == FULL:
        return _read_full(folder, tensors, config)
    check_types(config, {"lora_parameters": (dict,)}, folder)
    parameters = config["lora_parameters"]
    check_types(parameters, {"keys": (list, NoneType)}, folder)
    check_entries(parameters, {"keys": str}, folder)
    rank, scale = whole_number(parameters, "rank"), number(parameters, "scale")
    terms = Terms(rank, float(scale), kind == DORA)
    updates, saved = read_tensors(open_checkpoint(tensors), DIALECT, terms)
    return Adapter(folder, "mlx", updates, config, saved)


def _read_full(folder: Path, tensors: Path, config: Config) -> Adapter:
    """Read weights that were trained whole."""
    checkpoint = open_checkpoint(tensors)
    require_tensors(checkpoint)
    saved = read_whole(checkpoint, {name: name for name in checkpoint.headers})
    return Adapter(folder, "mlx", {}, config, saved)


def read_tensors(
    checkpoint: Checkpoint, dialect: Dialect, terms: Terms
) -> tuple[Mapping[str, LowRank], Mapping[str, Array]]:
    """Return the updates in CHECKPOINT by parameter, and whatever else it holds, whole.

    Raises:
        BadInputError: there is no update.
        MismatchError: the updates are not whole.
    """
    require_tensors(checkpoint)
    found = group(checkpoint.headers, dialect)
    if not found.modules:
        raise BadInputError(f"{checkpoint.path}: holds no update; save the adapter again")
    pairs = [
        Pair(path, kind, halves, form_of(halves, checkpoint.headers), terms, f"{path}.weight")
        for (path, kind), halves in found.modules.items()
    ]
    strange = [f"{name} is no part of an adapter" for name in found.others if "lora" in name]
    updates = read_pairs(checkpoint, dialect, pairs, strange)
    return updates, read_whole(checkpoint, {name: name for name in found.others})


def form_of(halves: Mapping[str, str], headers: Mapping[str, Header]) -> Form:
    """Return how HALVES lie: those of experts have an axis more."""
    axes = {len(headers[name].shape) for role, name in halves.items() if role in ("a", "b")}
    return MLX_SWITCH if SWITCH_AXES in axes else MLX_LINEAR
