"""Train and eval mode of a module under training: whether dropout drops and statistics follow batches."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from ..adapters import select

OFF = "dropout is off and batch statistics stay as they are"


def trains(module: nn.Module, mode: str) -> bool:
    """Return whether some part of MODULE is run in train mode by the setting MODE."""
    return mode == "train" and any(part.training for part in module.modules())


def notices(module: nn.Module, mode: str) -> list[str]:
    """Return what a person should know about MODULE under the setting MODE: nothing is off silently."""
    if trains(module, mode) or not any(map(_differs, module.modules())):
        return []
    if mode == "eval":
        return [f"mode eval: {OFF}"]
    return [f"the module was given in eval mode, so {OFF}; call .train() on it to train with them"]


def with_statistics(module: nn.Module) -> set[str]:
    """Return the parameters of MODULE that stand beside statistics: torch wants both in one dtype."""
    return {
        f"{path}.{name}" if path else name
        for path, part in module.named_modules()
        if isinstance(part, _NormBase)
        for name, _ in part.named_parameters()
    }


def recomputed(module: nn.Module, patterns: Sequence[str]) -> list[str]:
    """Return the paths of the parts of MODULE that PATTERNS mean, none of them within another."""
    paths = [
        path
        for path, part in module.named_modules()
        if path and any(True for _ in part.parameters())
    ]
    chosen = select(paths, patterns, "modules", "checkpoint") if patterns else []
    return [it for it in chosen if not any(it.startswith(f"{other}.") for other in chosen)]


def _differs(part: nn.Module) -> bool:
    """Return whether PART computes something else in train mode."""
    if isinstance(part, _DropoutNd):
        return part.p > 0
    return isinstance(part, _NormBase) and part.track_running_stats
