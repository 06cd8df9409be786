"""mlx-lm's adapters: ``y + scale * (x @ lora_a) @ lora_b``, one rank and one scale for all.

Format: ``mlx_lm/tuner/utils.py``, ``mlx_lm/tuner/lora.py``.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any, Final

import numpy as np

from ...errors import UnsupportedError
from ..checkpoints import Header, Writer
from ..checkpoints.open import open_checkpoint
from ..dtypes import CODE
from ..values import Array, LowRank
from .adapter import Adapter
from .config import CONFIG, Config, check_types, number
from .pairing import Dialect, Terms, pair

TENSORS: Final = "adapters.safetensors"
DIALECT: Final = Dialect(
    "mlx", "", {"a": ".lora_a", "b": ".lora_b", "magnitude": ".m"}, transposed=True
)
LORA, DORA = "lora", "dora"


def read_mlx(folder: Path, tensors: Path, config: Config) -> Adapter:
    """Read the adapter of FOLDER, whose CONFIG is read already, from the file TENSORS.

    Raises:
        UnsupportedError: the fine-tuning was not low-rank.
        BadInputError: the configuration lacks rank or scale.
        MismatchError: the tensors are not a whole adapter.
    """
    kind = config.get("fine_tune_type", LORA)
    if kind not in (LORA, DORA):
        raise UnsupportedError(
            f"{folder}: fine_tune_type {kind} is not low-rank; its tensors are weights of a model"
        )
    check_types(config, {"lora_parameters": (dict,), "num_layers": (int, NoneType)}, folder)
    parameters = config["lora_parameters"]
    check_types(parameters, {"keys": (list, NoneType)}, folder)
    rank, scale = number(parameters, "rank"), number(parameters, "scale")
    terms = Terms(int(rank), float(scale), kind == DORA)
    return Adapter(folder, "mlx", pair(open_checkpoint(tensors), DIALECT, lambda _: terms), config)


def write_adapter(
    folder: Path, updates: Mapping[str, LowRank], *, config: Mapping[str, Any]
) -> None:
    """Write UPDATES, by weight name, as an mlx-lm adapter; CONFIG holds whatever else to record.

    mlx-lm knows one rank and one scale. Smaller ranks are padded with zeros, which is exact; where
    scales differ, the ratio to the first one is multiplied into ``lora_b``, rounded once.

    Raises:
        UnsupportedError: mlx-lm has no form for these updates.
    """
    arrays = _arrays(updates)
    layout = {name: Header(CODE[array.dtype], array.shape) for name, array in arrays.items()}
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / ".new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    writer = Writer(fresh, layout, metadata={"format": "mlx"}, stem=Path(TENSORS).stem)
    for name, array in arrays.items():
        writer.write(name, array)
    writer.close()
    text = json.dumps(_config(updates, config), indent=4, sort_keys=True)
    (fresh / CONFIG).write_text(text + "\n", encoding="utf-8")
    for file in (TENSORS, CONFIG):
        (fresh / file).replace(folder / file)
    fresh.rmdir()


def _common(updates: Mapping[str, LowRank]) -> Terms:
    """Return the one rank and scale that mlx-lm is to have for UPDATES."""
    kinds = {update.magnitude is not None for update in updates.values()}
    strange = [name for name in updates if not name.endswith(".weight")]
    if len(kinds) != 1 or strange:
        raise UnsupportedError(
            "mlx-lm adapters are all LoRA or all DoRA, on parameters called weight;"
            f" not so: {', '.join(strange) or 'a mixture of both, or nothing at all'}"
        )
    first = next(iter(updates.values()))
    return Terms(max(update.rank for update in updates.values()), first.scale, kinds.pop())


def _arrays(updates: Mapping[str, LowRank]) -> dict[str, Array]:
    """Return the tensors of UPDATES by their names in the file."""
    terms = _common(updates)
    arrays: dict[str, Array] = {}
    for name, update in updates.items():
        module = name.removesuffix(".weight")
        b = update.b
        if update.scale != terms.scale:
            b = (b.astype(np.float64) * (update.scale / terms.scale)).astype(b.dtype)
        padding = (0, terms.rank - update.rank)
        arrays[module + ".lora_a"] = np.pad(update.a.T, ((0, 0), padding))
        arrays[module + ".lora_b"] = np.pad(b.T, (padding, (0, 0)))
        if update.magnitude is not None:
            arrays[module + ".m"] = update.magnitude
    return arrays


def _config(updates: Mapping[str, LowRank], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what mlx-lm reads, over what CONFIG records.

    ``keys`` are full paths: mlx-lm takes them as well as names relative to a layer, and leaf names
    with ``num_layers`` would wrap modules that were not trained.
    """
    terms = _common(updates)
    parameters = {
        "dropout": 0.0,
        **config.get("lora_parameters", {}),
        "rank": terms.rank,
        "scale": terms.scale,
        "keys": sorted(name.removesuffix(".weight") for name in updates),
    }
    return {
        "num_layers": -1,
        **config,
        "fine_tune_type": DORA if terms.magnitude else LORA,
        "lora_parameters": parameters,
    }
