"""Maps: which tensor of one framework is which tensor of another, written as text."""

from __future__ import annotations

from .binding.plan import Dropped, Plan, Step
from .binding.weightmap import WeightMap
from .execution.execution import Execution, apply, execute
from .notation.axes import join, split

__all__ = ["Dropped", "Execution", "Plan", "Step", "WeightMap", "apply", "execute", "join", "split"]
