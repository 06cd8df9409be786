"""``adapter_config.json``: mlx-lm and PEFT use one file name for two formats."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ...errors import BadInputError
from ..documents import CONFIG as CONFIG_FILE
from ..documents import read_object

CONFIG: Final = "adapter_config.json"
ADAPTER: Final = CONFIG_FILE._replace(todo="save the adapter again")
ENTRIES: Final = {str: "names", int: "whole numbers"}
Config = Mapping[str, Any]


def read_config(folder: Path) -> Config:
    """Return the configuration of the adapter in FOLDER.

    Raises:
        BadInputError: FOLDER is not an adapter; says what it is where that is plain to see.
    """
    path = folder / CONFIG
    try:
        return read_object(path, ADAPTER)
    except FileNotFoundError:
        raise BadInputError(_not_an_adapter(folder)) from None


def _not_an_adapter(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder}: no such adapter directory"
    if (folder / "config.json").exists():
        return (
            f"{folder} is a model, not an adapter (it has config.json and no {CONFIG}); swap them?"
        )
    return (
        f"{folder}: not an adapter, {CONFIG} is missing; copy it from where the adapter was trained"
    )


def check_types(config: Config, types: Mapping[str, tuple[type, ...]], folder: Path) -> None:
    """Check the fields of CONFIG that TYPES names; a field that is not there counts as None.

    Raises:
        BadInputError: a field is of another type.
    """
    for field, allowed in types.items():
        if not isinstance(config.get(field), allowed):
            names = " or ".join(kind.__name__ for kind in allowed)
            what = f"{field} is {config.get(field)!r}, expected {names}"
            raise BadInputError(f"{folder / CONFIG}: {what}")


def check_entries(config: Config, types: Mapping[str, type], folder: Path) -> None:
    """Check that the lists in those fields of CONFIG that TYPES names hold nothing else.

    Raises:
        BadInputError: one does.
    """
    for field, wanted in types.items():
        entries = config.get(field)
        for entry in entries if isinstance(entries, list) else ():
            if type(entry) is not wanted:  # True is no number here
                what = f"{field} has {entry!r}, expected {ENTRIES[wanted]}"
                raise BadInputError(f"{folder / CONFIG}: {what}")


def whole_number(config: Config, key: str) -> int:
    """Return the positive whole number under KEY of CONFIG, such as a rank.

    Raises:
        BadInputError: there is none.
    """
    value = number(config, key)
    if not isinstance(value, int):
        raise BadInputError(f"{CONFIG}: {key} is {value!r}, expected a whole number")
    return value


def number(config: Config, key: str) -> float:
    """Return the positive number under KEY of CONFIG.

    Raises:
        BadInputError: there is none.
    """
    value = config.get(key)
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 < value <= sys.float_info.max
    ):
        raise BadInputError(f"{CONFIG}: {key} is {value!r}, expected a positive number")
    return value
