"""Read an adapter in whichever dialect it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

from ...errors import BadInputError
from ..common.contents import ZIP, require
from ..common.dtypes import NUMPY
from ..documents import RECORD as RECORD_FILE
from ..documents import read_optional
from .adapter import Adapter, digest
from .config import CONFIG, Config, read_config
from .mlx.legacy import NPZ, read_npz, read_vlm
from .mlx.reader import TENSORS, read_mlx
from .peft.reader import read_peft

PEFT_TENSORS: Final = ("adapter_model.safetensors", "adapter_model.bin")
READERS: Final[Mapping[str, Callable[[Path, Path, Config], Adapter]]] = {
    "mlx": read_mlx,
    "mlx-vlm": read_vlm,
    "npz": read_npz,
    "peft": read_peft,
}
FILES: Final = {
    "mlx": (TENSORS,),
    "mlx-vlm": (TENSORS,),
    "npz": (NPZ,),
    "peft": PEFT_TENSORS,
}
RECORD: Final = "weighbridge.json"
GRIDS: Final = "grids"  # hashes of the grids that an adapter was trained for, by weight
ORIGINAL: Final = "original"  # whose weights it was added to there; none for those of the codes
ADDED_TO: Final = (
    "original_tensors"  # hashes of those weights of it, in the base's names and layout
)
RECORDED: Final = {"spec": str, "framework": str, "tensors": dict, "quantization": dict} | {
    "weights": dict,
    GRIDS: dict,
    ORIGINAL: str,
    ADDED_TO: dict,
}
PROJECTIONS: Final = 16  # of a weight
WEIGHT: Final = {"dtype": str, "hashes": dict, "projections": list}


def read_adapter(path: Path) -> Adapter:
    """Read the adapter at PATH, a directory or one of several tensor files in it.

    Raises:
        BadInputError: PATH is not an adapter.
        UnsupportedError: it is of a kind that is refused; says by which field.
        MismatchError: halves of updates are missing, shapes differ, or tensors are unknown.
    """
    require(path, "an adapter, a directory or one of its tensor files", {ZIP})
    folder = path.parent if path.is_file() else path
    config = _config(path, folder)
    dialect = dialect_of(folder, config, path)
    tensors = path if path.is_file() else _tensors(folder, dialect)
    read = READERS[dialect](folder, tensors, config)
    base, hashed = recorded_base(folder), digest(read)
    return replace(read, base=base, file=tensors, digest=hashed)


def _config(path: Path, folder: Path) -> Config:
    """Return the configuration; the old examples wrote none."""
    bare = path.name.endswith(".npz") or (folder / NPZ).is_file()
    return {} if bare and not (folder / CONFIG).exists() else read_config(folder)


def dialect_of(folder: Path, config: Config, path: Path | None = None) -> str:
    """Return whose CONFIG it is: ``mlx``, ``mlx-vlm``, ``npz`` or ``peft``.

    Raises:
        BadInputError: it has marks of several, or of none, or FOLDER has the files of several and
            PATH names none of them.
    """
    path = path or folder
    marks = {
        "peft": "peft_type" in config,
        "mlx": not config.keys().isdisjoint({"fine_tune_type", "lora_parameters"}),
    }
    found = [dialect for dialect, marked in marks.items() if marked]
    if len(found) > 1:
        raise BadInputError(
            f"{folder / CONFIG}: has both mlx-lm's and PEFT's fields; keep one of the two"
        )
    if found != ["peft"] and _is_npz(path, folder):
        found = ["npz"]
    if not found and {"rank", "alpha"} & config.keys():
        found = ["mlx-vlm"]
    if not found:
        raise BadInputError(
            f"{folder / CONFIG}: neither mlx-lm's (lora_parameters) nor PEFT's (peft_type)"
        )
    if not path.is_file():
        _require_one(folder)
    return found[0]


def _is_npz(path: Path, folder: Path) -> bool:
    if path.is_file():
        return path.name.endswith(".npz")
    return (folder / NPZ).is_file() and not (folder / TENSORS).is_file()


def _require_one(folder: Path) -> None:
    """Refuse a directory with tensors of more than one dialect.

    Raises:
        BadInputError: it is one.
    """
    groups = ((TENSORS,), (NPZ,), PEFT_TENSORS)
    found = [next((n for n in group if (folder / n).is_file()), "") for group in groups]
    if len(names := [name for name in found if name]) > 1:
        what = f"has adapters of several dialects ({', '.join(names)})"
        raise BadInputError(f"{folder}: {what}; name one file")


def _tensors(folder: Path, dialect: str) -> Path:
    for file in FILES[dialect]:
        if (folder / file).is_file():
            return folder / file
    raise BadInputError(f"{folder}: {FILES[dialect][0]} is missing; copy it beside {CONFIG}")


def recorded_base(folder: Path) -> Mapping[str, Any]:
    """Return what ``weighbridge.json`` in FOLDER records of the adapter's base; empty if nothing.

    Raises:
        BadInputError: the file is not what Weighbridge writes.
    """
    path = folder / RECORD
    base = read_optional(path, RECORD_FILE).get("base", {})
    if (field := _odd_field(base)) is not None:
        what = f"its record of the base is not what Weighbridge writes ({field})"
        raise BadInputError(f"{path}: {what}; remove it, and nothing is known of the base")
    return cast(Mapping[str, Any], base)


def _odd_field(base: Any) -> str | None:
    """Return which field of BASE has another type than ours; ``None`` if none has."""
    if not isinstance(base, dict):
        return "base"
    for field, kind in RECORDED.items():
        if not isinstance(base.get(field), kind | None):
            return field
    for field in ("tensors", GRIDS):
        if not all(isinstance(it, str) for it in (base.get(field) or {}).values()):
            return field
    weights = (base.get("weights") or {}).values()
    return None if all(_is_weight(it) for it in weights) else "weights"


def _is_weight(record: Any) -> bool:
    """Say whether RECORD is what is recorded of a weight: dtype, hashes and projections."""
    return (
        isinstance(record, dict)
        and all(isinstance(record.get(field), kind) for field, kind in WEIGHT.items())
        and record["dtype"] in NUMPY
        and len(record["projections"]) == PROJECTIONS
        and all(type(number) is float for number in record["projections"])
    )
