"""The tensors of a model, wherever it keeps them: what fingerprints read."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...converters.adapters.merging.modules_to_save import ModulesToSave
from ...converters.checkpoints.base import Header
from ...converters.checkpoints.derived import Overlay
from ...converters.common.arrays import from_mlx, from_torch
from ...converters.common.dtypes import CODE, FLOATS, NUMPY
from ...converters.models import Model
from ...converters.models.factories import copied
from ...converters.models.program_files import ProgramFile, recorded
from ...converters.quantization.rounding import round_once
from ...converters.values import Array, LowRank
from .sketches.sketch import ArrayWeights, Sketch, Weights

if TYPE_CHECKING:
    from ...converters.captures.mlprogram.program import Program

NARROW = {"F16": "float16", "BF16": "bfloat16"}


class MergedWeights:
    """Weights with live updates added, each sum rounded once to the weight's dtype."""

    def __init__(self, weights: Weights, updates: Mapping[str, LowRank]) -> None:
        self._weights, self._updates = weights, updates
        self.headers: Mapping[str, Header] = weights.headers

    def read(self, name: str) -> Array:
        """Return tensor NAME, merged if an update is due."""
        array = self._weights.read(name)
        update = self._updates.get(name)
        return array if update is None else round_once(update.applied_to(array), array.dtype)


class Constants:
    """What may be weights of a graph: floating point with axes, and single numbers that are NAMED."""

    def __init__(self, tensors: Weights, named: Collection[str]) -> None:
        self.read = tensors.read
        self.headers: Mapping[str, Header] = {
            name: it
            for name, it in tensors.headers.items()
            if it.dtype in FLOATS and (it.shape or name in named)
        }


def _module_arrays(module: Any, framework: str) -> dict[str, Array]:
    if framework == "torch":
        return {name: from_torch(t) for name, t in module.state_dict().items()}
    from mlx.utils import tree_flatten

    parameters: Any = tree_flatten(module.parameters())
    return {name: from_mlx(array) for name, array in parameters}


def program_weights(program: Program, also: Collection[str] = ()) -> Weights:
    """Return the constants of PROGRAM; of those without axes what its manifest names, and ALSO."""
    manifest = program.manifest
    named = {*manifest.get("weights", ()), *manifest.get("made", ()), *also}
    numbers = {name: it for name, it in program.scalars().items() if name in named}
    constants = {**program.constants(), **numbers}
    return ArrayWeights({name: a for name, a in constants.items() if a.dtype in CODE})


def _package_weights(path: Path) -> Weights:
    from ...converters.captures.mlprogram import load_program

    return program_weights(load_program(path))


def weights_of(model: Model) -> Weights:
    """Return MODEL's tensors under its own names, a live adapter merged, its `modules_to_save` tensors in.

    Raises:
        BadInputError: its files cannot be read.
    """
    weights: Weights
    saved = model.adapter.saved if model.adapter else {}
    if model.framework == "mlprogram" and model.path:
        weights = _package_weights(model.path)
    elif isinstance(model.tensors, ProgramFile):
        manifest = recorded(model.tensors)
        weights = Constants(
            model.tensors, {*manifest.get("weights", ()), *manifest.get("made", ())}
        )
    elif model.path is not None:
        weights = Overlay(model.checkpoint, saved) if saved else model.checkpoint
    else:
        weights = ArrayWeights({**_module_arrays(model.factory, model.framework), **saved})
    return MergedWeights(weights, model.adapter.updates) if model.adapter else weights


def own_copy(model: Model) -> Model:
    """Return MODEL with a torch module of its own, so that casting it changes nobody else's."""
    if model.factory is None or model.framework != "torch":
        return model
    return replace(model, factory=copied(model.factory))


def base_weights(model: Model) -> Weights:
    """Return MODEL's tensors without the updates of its adapter, whose `modules_to_save` tensors are in."""
    weights = weights_of(model)
    return weights._weights if isinstance(weights, MergedWeights) else weights


def kept_weights(model: Model) -> Weights:
    """Return MODEL's tensors in the dtypes that a merge of its adapter keeps: those of its base."""
    weights = base_weights(model)
    return weights.base if isinstance(weights, ModulesToSave) else weights


def storage_dtype(weights: Weights) -> str:
    """Return the 16-bit dtype that most floating-point elements are kept in, else ``float32``.

    >>> import numpy as np
    >>> storage_dtype(ArrayWeights({"w": np.zeros(9, np.float16), "norm": np.zeros(2)}))
    'float16'
    """
    return mostly(weights.headers.values())


def mostly(tensors: Iterable[Header | Sketch]) -> str:
    """Return what :func:`storage_dtype` does, of what is known of TENSORS.

    >>> mostly([Header("BF16", (2, 5)), Header("F32", (2,)), Header("I64", (100,))])
    'bfloat16'
    """
    elements: Counter[str] = Counter()
    for it in tensors:
        if it.dtype in FLOATS:
            elements[it.dtype] += math.prod(it.shape)
    most = elements.most_common(1)
    return NARROW.get(most[0][0], "float32") if most else "float32"


def has_wider(weights: Weights) -> bool:
    """Say whether some floating-point WEIGHTS are kept in more than 16 bits where most are not.

    >>> import numpy as np
    >>> has_wider(ArrayWeights({"w": np.zeros(9, np.float16), "norm": np.zeros(2)}))
    True
    """
    kept = {header.dtype for header in weights.headers.values() if header.dtype in FLOATS}
    return storage_dtype(weights) != "float32" and any(NUMPY[it].itemsize > 2 for it in kept)


def file_hashes(paths: Iterator[Path] | tuple[Path, ...], root: Path) -> dict[str, str]:
    """Return the xxh3 of each file, by its path below ROOT."""
    import xxhash

    hashes = {}
    for path in paths:
        digest = xxhash.xxh3_128()
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
        name = path.relative_to(root) if path.is_relative_to(root) else path.name
        hashes[str(name)] = f"xxh3:{digest.hexdigest()}"
    return hashes


def model_hashes(model: Model) -> dict[str, str]:
    """Return the xxh3 of the files that make MODEL what it is: weights, configuration, adapter."""
    if model.path is None:
        return {}
    if model.framework in ("mlprogram", "coreai"):
        return file_hashes(
            tuple(p for p in sorted(model.path.rglob("*")) if p.is_file()), model.path
        )
    if model.framework == "onnx":
        return file_hashes(model.checkpoint.files, model.path.parent)
    config = model.path / "config.json"
    root = model.path if model.path.is_dir() else model.path.parent
    files = (*model.checkpoint.files, *([config] if config.is_file() else []))
    hashes = file_hashes(files, root)
    if model.adapter:
        adapter = model.adapter.path
        own = tuple(sorted(adapter.glob("*.safetensors"))) if adapter.is_dir() else (adapter,)
        hashes |= {f"adapter/{name}": it for name, it in file_hashes(own, adapter).items()}
    return hashes
