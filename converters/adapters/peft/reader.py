"""PEFT's LoRA: linear layers and Conv1D, embeddings, experts, DoRA, and whole modules.

Format: ``peft/utils/save_and_load.py``, ``peft/tuners/lora/layer.py``.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Final, NamedTuple

from ....errors import BadInputError, UnsupportedError
from ...checkpoints.open import open_checkpoint
from ..adapter import Adapter
from ..config import Config
from ..forms import PEFT_EMBEDDING, PEFT_EXPERTS, PEFT_LINEAR
from ..pairing import Dialect, Found, Pair, group, read_pairs, read_whole, require_tensors
from . import nesting
from .fields import refusals
from .targets import check_fields, kept_whole, parameters_of, targeted, terms_of

PREFIX: Final = "base_model.model."
DIALECT: Final = Dialect(
    "PEFT",
    PREFIX,
    {
        "a": ".lora_A.weight",
        "b": ".lora_B.weight",
        "magnitude": ".lora_magnitude_vector",
        "embedding:a": ".lora_embedding_A",
        "embedding:b": ".lora_embedding_B",
    },
)


class Level(NamedTuple):
    """Where the tensors of an update lie: so many wrappers deep in a module."""

    depth: int
    path: str
    kind: str


def read_peft(folder: Path, tensors: Path, config: Config) -> Adapter:
    """Read the adapter of FOLDER, whose CONFIG is read already, from the file TENSORS.

    Raises:
        UnsupportedError: it is of a kind that is refused; names the fields.
        BadInputError: the configuration lacks rank or alpha.
        MismatchError: the tensors are not a whole adapter.
    """
    if refused := refusals(config):
        raise UnsupportedError(f"{folder}: this kind of adapter is not read: {'; '.join(refused)}")
    check_fields(config, folder)
    checkpoint = open_checkpoint(tensors)
    require_tensors(checkpoint)
    found = group(checkpoint.headers, DIALECT)
    pairs, problems = _pairs(found, config)
    whole, strange = _whole(found, config)
    updates = read_pairs(checkpoint, DIALECT, pairs, [*problems, *strange])
    if not updates and not whole:
        raise BadInputError(f"{tensors}: holds no update; save the adapter again")
    forms = {pair.parameter: pair.form.name for pair in pairs if pair.form.name}
    return Adapter(folder, "peft", updates, config, read_whole(checkpoint, whole), forms=forms)


def _pairs(found: Found, config: Config) -> tuple[list[Pair], list[str]]:
    """Return the updates that FOUND names, and what cannot be one."""
    modules: dict[str, list[Level]] = defaultdict(list)
    for path, kind in found.modules:
        module, depth = nesting.split(path)
        modules[module].append(Level(depth, path, kind))
    pairs, problems = [], []
    for module, levels in modules.items():
        if len({level.kind for level in levels}) > 1:
            what = "has an embedding's halves and others; DoRA of embeddings is not read, merge it"
            problems.append(f"{PREFIX}{module} {what} with PEFT and convert the merged model")
            continue
        pairs += _of_module(module, sorted(levels, reverse=True), found, config)
        problems += _too_deep(module, levels, config)
    return pairs, problems


def _of_module(module: str, levels: list[Level], found: Found, config: Config) -> list[Pair]:
    """Return the updates of MODULE, the deepest first."""
    names = nesting.deepest_first(parameters_of(config, module))
    if not names or levels[0].kind or targeted(config, [module]):
        form = PEFT_EMBEDDING if levels[0].kind else PEFT_LINEAR
        terms = terms_of(config, module)
        return [
            Pair(path, kind, found.modules[path, kind], form, terms, f"{module}.weight")
            for _, path, kind in levels
        ]
    names = names[: len(levels)] if len(names) >= len(levels) else [*names, *("?" * len(levels))]
    return [
        _of_parameter(found, level, f"{module}.{name}", config)
        for level, name in zip(levels, names, strict=False)
    ]


def _of_parameter(found: Found, level: Level, parameter: str, config: Config) -> Pair:
    _, path, kind = level
    terms = terms_of(config, parameter)
    return Pair(path, kind, found.modules[path, kind], PEFT_EXPERTS, terms, parameter)


def _too_deep(module: str, levels: list[Level], config: Config) -> list[str]:
    """Say that there are more wrappers than targets."""
    allowed = len(parameters_of(config, module)) or 1
    if len(levels) <= allowed and max(level.depth for level in levels) < allowed:
        return []
    what = f"lies {max(level.depth for level in levels)} wrappers deep"
    return [f"{PREFIX}{module} {what}, but target_parameters names {allowed} of its parameters"]


def _whole(found: Found, config: Config) -> tuple[dict[str, str], list[str]]:
    """Return the ``modules_to_save`` tensors among FOUND's others, new name by name, and what is none.

    PEFT writes ``modules_to_save``, embeddings that were resized, and beside an update of an
    embedding the weight that it updates (``save_embedding_layers``).
    """
    updated = {nesting.split(path)[0] for path, _ in found.modules}
    whole, problems = {}, []
    for name in found.others:
        path, _, leaf = name.removeprefix(PREFIX).rpartition(".")
        module, depth = nesting.split(path)
        copied = bool(depth) and module in updated
        resized = leaf == "weight" or f"{PREFIX}{path}.weight" in found.others
        if (
            not name.startswith(PREFIX)
            or "lora_" in name
            or not (copied or resized or kept_whole_above(config, path))
        ):
            problems.append(f"{name} is no part of a PEFT adapter that is read")
        else:
            whole[f"{module}.{leaf}"] = name
    return whole, problems


def kept_whole_above(config: Config, path: str) -> bool:
    """Say whether ``modules_to_save`` names PATH or a module that it lies in."""
    parts = path.split(".")
    return any(kept_whole(config, ".".join(parts[: end + 1])) for end in range(len(parts)))
