"""An adapter: low-rank updates by the name of the parameter that each one changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
        digest: a hash of what was read (``identity.digest``), whatever became of it since.
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
    def framework(self) -> str:
        """Whose names the adapter uses: ``torch`` or ``mlx``."""
        return "torch" if self.dialect == "peft" else "mlx"


def module_of(parameter: str) -> str:
    """Return what an adapter calls PARAMETER: the path of its module, or of one that is no weight.

    >>> module_of("model.embed_tokens.weight"), module_of("mlp.experts.down_proj")
    ('model.embed_tokens', 'mlp.experts.down_proj')
    """
    return parameter.removesuffix(".weight")
