"""An adapter: low-rank updates by the name of the weight that each one changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..values import LowRank


@dataclass(frozen=True)
class Adapter:
    """Low-rank updates read from disk.

    Attributes:
        path: the directory.
        dialect: ``mlx`` (mlx-lm's files and naming) or ``peft``.
        updates: weight name in the naming of the adapter's framework, such as
            ``encoder.layer.0.attention.self.query.weight`` -> update.
        config: ``adapter_config.json``.
    """

    path: Path
    dialect: str
    updates: Mapping[str, LowRank]
    config: Mapping[str, Any]
