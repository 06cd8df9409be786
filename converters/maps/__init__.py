"""Maps: which tensor of one framework is which tensor of another, written as text."""

from __future__ import annotations

from .axes import join, split
from .execution import Execution, apply, execute
from .plan import Dropped, Plan, Step
from .weightmap import WeightMap

__all__ = ["Dropped", "Execution", "Plan", "Step", "WeightMap", "apply", "execute", "join", "split"]
