"""An adapter: low-rank updates by the name of the parameter that each one changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from ..common.dtypes import CODE
from ..values import Array, LowRank


@dataclass(frozen=True)
class Adapter:
    """Low-rank updates read from disk.

    Attributes:
        path: the directory.
        dialect: ``mlx`` (mlx-lm), ``mlx-vlm`` (its older files), ``npz`` (of the old examples) or
            ``peft``.
        updates: by parameter in the adapter's own naming, such as
            ``encoder.layer.0.attention.self.query.weight`` or ``...mlp.experts.gate_up_proj``.
            As they are read, every one is that of a linear layer, ``y + x @ update.T``;
            ``fit`` gives those of an embedding or of a ``Conv1D`` the axes of their weights.
        config: ``adapter_config.json``, or what stands for it.
        saved: ``modules_to_save`` tensors, which replace those of the base, by name.
        base: what ``weighbridge.json`` beside it records of its base.
        forms: what a file says of a parameter by the form of its tensors: ``embedding``,
            ``experts`` or ``parameter`` (as it is stored, whatever its module).
        notes: what a person should know of how the files were read.
        fitted: whether ``fit`` has aligned the updates with their parameters.
        file: the tensor file that was read: one of several, such as
            ``0000100_adapters.safetensors``, may have been named.
        digest: a hash of what was read (:func:`digest`), whatever became of it since.
    """

    path: Path
    dialect: str
    updates: Mapping[str, LowRank]
    config: Mapping[str, Any]
    saved: Mapping[str, Array] = field(default_factory=dict)
    base: Mapping[str, Any] = field(default_factory=dict)
    forms: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    fitted: bool = False
    file: Path | None = None
    digest: str = ""

    @property
    def named_bases(self) -> tuple[str, ...]:
        """What its files call the model that it is for, our own record first: paths or names of the hub."""
        keys = ("base_model_name_or_path", "model")
        named = (self.base.get("spec"), *map(self.config.get, keys))
        return tuple(name for name in named if name and isinstance(name, str))

    @property
    def framework(self) -> str:
        """Whose names the adapter uses: ``torch`` or ``mlx``."""
        return "torch" if self.dialect == "peft" else "mlx"


def module_of(parameter: str) -> str:
    """Return what an adapter calls PARAMETER: the path of its module, or of one that is no weight.

    >>> module_of("model.embed_tokens.weight"), module_of("mlp.experts.down_proj")
    ('model.embed_tokens', 'mlp.experts.down_proj')
    """
    return parameter.removesuffix(".weight")


def digest(adapter: Adapter) -> str:
    """Return ``xxh3:<hex>`` of the updates and ``modules_to_save`` tensors of ADAPTER, as it was read.

    Names, scales, dtypes, shapes and numbers count; the folder, the container and the order of the
    tensors do not.
    """
    total = xxhash.xxh3_128()
    for what, array in _parts(adapter):
        total.update(f"{what} {CODE[array.dtype]}{array.shape}".encode())
        total.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return f"xxh3:{total.hexdigest()}"


def _parts(adapter: Adapter) -> Iterator[tuple[Any, Array]]:
    """Yield every array of ADAPTER in the order of the names, and what it is."""
    for name, update in sorted(adapter.updates.items()):
        yield ("a", name, float(update.scale)), update.a
        yield ("b", name), update.b
        if update.magnitude is not None:
            yield ("m", name), update.magnitude
    for name, array in sorted(adapter.saved.items()):
        yield ("whole", name), array
