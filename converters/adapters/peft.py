"""PEFT's LoRA of linear layers, DoRA included; every other kind is refused by name.

Format: ``peft/utils/save_and_load.py``, ``peft/tuners/lora/config.py``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import NoneType
from typing import Any, Final

from ...errors import BadInputError, UnsupportedError
from ..checkpoints.open import open_checkpoint
from .adapter import Adapter
from .config import CONFIG, Config, check_types, number
from .pairing import Dialect, Terms, pair

DIALECT: Final = Dialect(
    "peft",
    "base_model.model.",
    {"a": ".lora_A.weight", "b": ".lora_B.weight", "magnitude": ".lora_magnitude_vector"},
    transposed=False,
)
# Fields that tell how an adapter came about, or that are read here; any other must be unset.
READ: Final = frozenset(
    {"peft_type", "r", "lora_alpha", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern"}
    | {"target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"}
)
HISTORY: Final = frozenset(
    {"task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision"}
    | {"inference_mode", "lora_dropout", "runtime_config", "qalora_group_size", "eva_config"}
    | {"loftq_config", "corda_config", "lora_ga_config", "megatron_config", "megatron_core"}
)
# Initialisations that leave the base as it is; PiSSA, OLoRA, CorDA, LoftQ ... change it.
TYPES: Final = {
    "rank_pattern": (dict, NoneType),
    "alpha_pattern": (dict, NoneType),
    "target_modules": (str, list, NoneType),
    "exclude_modules": (str, list, NoneType),
    "layers_to_transform": (int, list, NoneType),
    "layers_pattern": (str, list, NoneType),
}
INITIALISATIONS: Final = (True, False, None, "gaussian", "eva", "orthogonal")
UNSET: Final[tuple[Any, ...]] = (None, False, "none", [], {})


def read_peft(folder: Path, tensors: Path, config: Config) -> Adapter:
    """Read the adapter of FOLDER, whose CONFIG is read already, from the file TENSORS.

    Raises:
        UnsupportedError: it is not plain LoRA or DoRA of linear layers; names the fields.
        BadInputError: the configuration lacks rank or alpha.
        MismatchError: the tensors are not a whole adapter.
    """
    if refused := refusals(config):
        raise UnsupportedError(
            f"{folder}: only LoRA and DoRA of linear layers are read, not {', '.join(refused)};"
            " merge it with PEFT and convert the merged model"
        )
    check_types(config, TYPES, folder)
    for pattern in _patterns(config):
        _check_pattern(pattern, folder)
    updates = pair(open_checkpoint(tensors), DIALECT, lambda module: terms_of(config, module))
    return Adapter(folder, "peft", updates, config)


def _patterns(config: Config) -> Iterator[Any]:
    """Yield everything in CONFIG that is used as a regular expression."""
    for field in ("rank_pattern", "alpha_pattern"):
        yield from config.get(field) or ()
    for field in ("target_modules", "exclude_modules"):
        if isinstance(config.get(field), str):
            yield config[field]
    layers = config.get("layers_pattern") or ()
    yield from (layers,) if isinstance(layers, str) else layers


def _check_pattern(pattern: Any, folder: Path) -> None:
    try:
        re.compile(pattern)
    except (re.error, TypeError) as error:
        what = f"{pattern!r} is not a regular expression ({error})"
        raise BadInputError(f"{folder / CONFIG}: {what}") from error


def refusals(config: Config) -> list[str]:
    """Return the fields of CONFIG that ask for more than LoRA or DoRA of linear layers.

    >>> refusals({"peft_type": "LORA", "r": 8, "bias": "all", "init_lora_weights": "pissa"})
    ['bias=all', 'init_lora_weights=pissa']
    """
    rules = {
        "peft_type": config.get("peft_type") == "LORA",
        "init_lora_weights": config.get("init_lora_weights") in INITIALISATIONS,
    }
    fields = sorted(set(config) - READ - HISTORY | set(rules))
    return [
        f"{field}={config.get(field)}"
        for field in fields
        if not rules.get(field, config.get(field) in UNSET)
    ]


def terms_of(config: Config, module: str) -> Terms:
    """Return rank and scale of MODULE: ``alpha / r``, or ``alpha / sqrt(r)`` with rsLoRA.

    >>> config = {"r": 4, "lora_alpha": 8, "alpha_pattern": {"v_proj": 2}, "use_rslora": True}
    >>> terms_of(config, "layers.0.v_proj")
    Terms(rank=4, scale=1.0, magnitude=False)
    """
    rank = int(_by_pattern(config, "rank_pattern", "r", module))
    alpha = float(_by_pattern(config, "alpha_pattern", "lora_alpha", module))
    divisor = math.sqrt(rank) if config.get("use_rslora") else rank
    return Terms(rank, alpha / divisor, bool(config.get("use_dora")))


def _by_pattern(config: Config, field: str, default: str, module: str) -> float:
    """Return the value of the first pattern under FIELD that matches the end of MODULE, as PEFT."""
    patterns = config.get(field) or {}
    for pattern in patterns:
        if re.match(rf"(.*\.)?({pattern})$", module):
            return number(patterns, pattern)
    return number(config, default)


def targeted(config: Config, modules: Iterable[str]) -> set[str]:
    """Return those of MODULES that CONFIG targets; empty where only PEFT could tell."""
    wanted = config.get("target_modules")
    if not wanted or wanted == "all-linear":
        return set()
    chosen = {module for module in modules if _named(wanted, module)}
    if excluded := config.get("exclude_modules"):
        chosen -= {module for module in chosen if _named(excluded, module)}
    layers = config.get("layers_to_transform")
    if layers in (None, []) or isinstance(wanted, str):
        return chosen
    indices = {layers} if isinstance(layers, int) else set(layers)
    pattern = _layer_pattern(config.get("layers_pattern"))
    there = {m for m in chosen if (found := pattern.match(m)) and int(found["index"]) in indices}
    return there | (chosen & set(wanted))  # a full path counts in any layer


def _named(wanted: str | list[str], module: str) -> bool:
    """Say whether MODULE matches: a string is a regular expression, a list has ends of paths."""
    if isinstance(wanted, str):
        return re.fullmatch(wanted, module) is not None
    return any(module == name or module.endswith(f".{name}") for name in wanted)


def _layer_pattern(pattern: str | list[str] | None) -> re.Pattern[str]:
    """Return the expression that finds the index of a layer in a module's path."""
    if not pattern:
        return re.compile(r".*?\.[^.]*\.(?P<index>\d+)\.")
    names = [pattern] if isinstance(pattern, str) else pattern
    return re.compile(rf"(?:^|.*?\.)(?:{'|'.join(names)})\.(?P<index>\d+)\.")
