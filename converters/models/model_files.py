"""The ``model.py`` of a directory: only what Weighbridge itself writes for the model type is accepted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ...errors import BadInputError, UntrustedError
from ..libraries import Target, find
from ..libraries.finding import code_refusal
from ..libraries.repairs.catalogue import asked
from ..libraries.repairs.writing import MODEL_FILES, text

KEY: Final = "model_file"


def require_own(path: Path | None, config: Mapping[str, Any]) -> None:
    """Refuse a directory whose ``model.py`` is not, byte for byte, the one that we write; it is never run.

    Raises:
        UntrustedError: CONFIG names code, and what lies at PATH is other code.
    """
    named = config.get(KEY)
    if path is None or not named:
        return
    file = path / str(named)
    target = find(config)  # refuses any other name
    if file.is_file() and (target is None or file.read_bytes() != text_for(target).encode()):
        raise UntrustedError(f"{code_refusal(KEY, named)} ({file} is not what Weighbridge writes)")


def text_for(target: Target) -> str:
    """Return the ``model.py`` that mends the class TARGET."""
    return text(target.module, target.model_type, target.repaired)


def write_model_file(folder: Path, config: Mapping[str, Any]) -> None:
    """Write the ``model.py`` that CONFIG names into FOLDER, if it names one."""
    target = find(config) if config.get(KEY) else None
    if target is not None:
        (folder / config[KEY]).write_text(text_for(target), encoding="utf-8")


def repairable(config: Mapping[str, Any], library: str = "mlx-lm") -> bool:
    """Say whether a repair is known of LIBRARY's class that reads CONFIG, and not in use yet."""
    if config.get(KEY) or not asked(config, library):
        return False
    target = find(config, library)
    return target is not None and target.library == library


def repaired_config(
    path: Path | None, config: Mapping[str, Any], library: str = "mlx-lm"
) -> dict[str, Any]:
    """Return CONFIG, of the checkpoint at PATH, asking for LIBRARY's class as it is mended.

    Raises:
        BadInputError: no repair is known of it, or PATH has code of that name.
    """
    if not repairable(config, library):
        kind = config.get("model_type", "(none)")
        raise BadInputError(
            f"nothing is known to repair in {kind} as it is set; leave --repair out"
        )
    file = MODEL_FILES[library]
    if path is not None and (path / file).exists():
        raise BadInputError(f"{path / file} is there already; rename it, for --repair writes one")
    return {**config, KEY: file}
