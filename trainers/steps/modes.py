"""Train and eval mode of a module under training: whether dropout drops and statistics follow batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

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


def _differs(part: nn.Module) -> bool:
    """Return whether PART computes something else in train mode."""
    if isinstance(part, _DropoutNd):
        return part.p > 0
    return isinstance(part, _NormBase) and part.track_running_stats


@contextmanager
def in_mode(module: nn.Module, training: bool) -> Iterator[Any]:
    """Run MODULE in the block in train mode, its parts as each was left, or all of it in eval mode."""
    before = {part: part.training for part in module.modules()}
    try:
        yield module.eval() if not training else module
    finally:
        for part, mode in before.items():
            part.training = mode
