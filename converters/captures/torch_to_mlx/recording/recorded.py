"""What is kept of a recorded torch module: its graph and names, none of its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import torch

from ..graph import Graph
from ..ports import Port


@dataclass(frozen=True)
class Recording:
    """What is kept of a torch module.

    Attributes:
        graph: the steps.
        ports: the inputs.
        names: every name of torch's state dict -> (first name of the same tensor, torch dtype).
        reads: graph value -> name of the parameter or buffer that it starts from.
        constants: graph value -> array.
        writes: positions of the graph's outputs -> name of the buffer that they update.
        structure: the module's return value, with positions of the graph's outputs as leaves.
        mode: whether it was in train mode; ``None`` where its code never asks.
        decided: whether it depends on the values of the example's masks (see ``deciding.masks``).
        settings: inputs that are no tensors, by path -> as they were recorded.
        conditions: what sizes that vary must fulfil -> the line of the module's code that asked (see ``deciding.asked``).
        masters: name -> torch dtype in which the module has it, where the graph has another.
    """

    graph: Graph
    ports: tuple[Port, ...]
    names: Mapping[str, tuple[str, torch.dtype]]
    reads: Mapping[str, str]
    constants: Mapping[str, mx.array]
    writes: Mapping[int, str]
    structure: Any
    mode: bool | None = None
    decided: bool = False
    masters: Mapping[str, torch.dtype] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    conditions: Mapping[Any, str] = field(default_factory=dict)

    @property
    def by_values(self) -> bool:
        """Tell whether it depends on values of the example, of masks or of whole numbers that are held."""
        return self.decided or any(port.held is not None for port in self.ports)

    def __deepcopy__(self, memo: dict[int, Any]) -> Recording:
        """Return this recording: nothing in it changes."""
        return self
