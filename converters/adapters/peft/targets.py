"""What a PEFT configuration says of a module: its rank and scale, and whether it is a target.

Source: ``peft/tuners/tuners_utils.py`` (``check_target_module_exists``, ``_inject_parameters``),
``peft/utils/other.py`` (``get_pattern_key``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import NoneType
from typing import Any, Final

from ....errors import BadInputError
from ..config import CONFIG, Config, check_entries, check_types, number, whole_number
from ..pairing import Terms

TYPES: Final = {
    "rank_pattern": (dict, NoneType),
    "alpha_pattern": (dict, NoneType),
    "target_modules": (str, list, NoneType),
    "exclude_modules": (str, list, NoneType),
    "layers_to_transform": (int, list, NoneType),
    "layers_pattern": (str, list, NoneType),
    "target_parameters": (list, NoneType),
    "modules_to_save": (list, NoneType),
}
ENTRIES: Final = {
    "target_modules": str,
    "exclude_modules": str,
    "layers_to_transform": int,
    "layers_pattern": str,
    "target_parameters": str,
    "modules_to_save": str,
}
ALL_LINEAR: Final = "all-linear"


def check_fields(config: Config, folder: Path) -> None:
    """Check the types of the fields that are read, and that patterns are regular expressions.

    Raises:
        BadInputError: one is not as PEFT would write it, or rank or alpha is zero.
    """
    check_types(config, TYPES, folder)
    check_entries(config, ENTRIES, folder)
    whole_number(config, "r")
    number(config, "lora_alpha")
    for pattern in _patterns(config):
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            what = f"{pattern!r} is not a regular expression ({error})"
            raise BadInputError(f"{folder / CONFIG}: {what}") from error
    for key in config.get("rank_pattern") or ():
        whole_number(config["rank_pattern"], key)
    for key in config.get("alpha_pattern") or ():
        number(config["alpha_pattern"], key)


def _patterns(config: Config) -> Iterator[Any]:
    """Yield everything in CONFIG that is used as a regular expression."""
    for field in ("rank_pattern", "alpha_pattern"):
        yield from config.get(field) or ()
    for field in ("target_modules", "exclude_modules"):
        if isinstance(config.get(field), str):
            yield config[field]
    layers = config.get("layers_pattern") or ()
    yield from (layers,) if isinstance(layers, str) else layers
    yield from config.get("modules_to_save") or ()


def terms_of(config: Config, target: str) -> Terms:
    """Return rank and scale of TARGET: ``alpha / r``, or ``alpha / sqrt(r)`` with rsLoRA.

    TARGET is the path of a module, or of a parameter if it is one of ``target_parameters``.

    >>> config = {"r": 4, "lora_alpha": 8, "alpha_pattern": {"v_proj": 2}, "use_rslora": True}
    >>> terms_of(config, "layers.0.v_proj")
    Terms(rank=4, scale=1.0, magnitude=False)
    """
    rank = int(_by_pattern(config, "rank_pattern", "r", target))
    alpha = float(_by_pattern(config, "alpha_pattern", "lora_alpha", target))
    divisor = math.sqrt(rank) if config.get("use_rslora") else rank
    return Terms(rank, alpha / divisor, bool(config.get("use_dora")))


def _by_pattern(config: Config, field: str, default: str, target: str) -> float:
    """Return the value of the first pattern under FIELD that matches the end of TARGET, as PEFT."""
    patterns = config.get(field) or {}
    for pattern in patterns:
        if re.match(rf"(.*\.)?({pattern})$", target):
            return number(patterns, pattern)
    return number(config, default)


def targeted(config: Config, modules: Iterable[str]) -> set[str]:
    """Return those of MODULES that CONFIG targets; empty where only PEFT could tell."""
    wanted = config.get("target_modules")
    if not wanted or all_linear(config):
        return set()
    chosen = {module for module in modules if _named(wanted, module)}
    chosen -= {module for module in chosen if excluded(config, module)}
    layers = config.get("layers_to_transform")
    if layers in (None, []) or isinstance(wanted, str):
        return chosen
    indices = {layers} if isinstance(layers, int) else set(layers)
    pattern = _layer_pattern(config.get("layers_pattern"))
    there = {m for m in chosen if (found := pattern.match(m)) and int(found["index"]) in indices}
    return there | (chosen & set(wanted))  # a full path counts in any layer


def all_linear(config: Config) -> bool:
    """Say whether CONFIG targets all linear layers by the word for it."""
    wanted = config.get("target_modules")
    return isinstance(wanted, str) and wanted.lower() == ALL_LINEAR


def excluded(config: Config, module: str) -> bool:
    """Say whether CONFIG keeps updates off MODULE: by name, or because it is trained whole."""
    names = config.get("exclude_modules")
    if names and _named(names, module):
        return True
    whole = config.get("modules_to_save") or ()
    return any(re.match(rf"(^|.*\.){name}($|\..*)", module) for name in whole)


def _named(wanted: str | list[str], module: str) -> bool:
    """Say whether MODULE matches: a string is a regular expression, a list has ends of paths."""
    if isinstance(wanted, str):
        return re.fullmatch(wanted, module) is not None
    return any(ends(module, name) for name in wanted)


def ends(path: str, name: str) -> bool:
    """Say whether PATH is NAME, or ends in it after a dot.

    >>> ends("mlp.up_proj", "up_proj"), ends("mlp.up_proj", "proj")
    (True, False)
    """
    return path == name or path.endswith(f".{name}")


def _layer_pattern(pattern: str | list[str] | None) -> re.Pattern[str]:
    """Return the expression that finds the index of a layer in a module's path."""
    if not pattern:
        return re.compile(r".*?\.[^.]*\.(?P<index>\d+)\.")
    names = [pattern] if isinstance(pattern, str) else pattern
    return re.compile(rf"(?:^|.*?\.)(?:{'|'.join(names)})\.(?P<index>\d+)\.")


def parameters_of(config: Config, module: str) -> list[str]:
    """Return the names of MODULE's own parameters that ``target_parameters`` could mean.

    >>> parameters_of({"target_parameters": ["mlp.experts.up", "down"]}, "layers.0.mlp.experts")
    ['up', 'down']
    """
    found = []
    for target in config.get("target_parameters") or ():
        path, _, name = target.rpartition(".")
        if not path or ends(module, path):
            found.append(name)
    return list(dict.fromkeys(found))


def targeted_parameters(config: Config, parameters: Iterable[str]) -> set[str]:
    """Return those of PARAMETERS that ``target_parameters`` names: in full, or their ends."""
    wanted = config.get("target_parameters") or ()
    return {path for path in parameters if any(ends(path, name) for name in wanted)}


def kept_whole(config: Config, module: str) -> bool:
    """Say whether ``modules_to_save`` names MODULE: PEFT compares the ends of the letters.

    >>> kept_whole({"modules_to_save": ["score"]}, "model.score")
    True
    """
    return any(module.endswith(name) for name in config.get("modules_to_save") or ())
