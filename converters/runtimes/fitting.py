"""Load tensors into a torch module, strictly: each it has, and none besides."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping

import torch
from torch import nn

from ...errors import MismatchError
from ..checkpoints import Header
from ..checkpoints.arrays import FileArrays
from ..checkpoints.base import different
from ..common.arrays import to_torch


def load_weights(
    module: nn.Module, arrays: FileArrays, *, where: str, known: Collection[str] = ()
) -> None:
    """Load ARRAYS into MODULE, strictly.

    Args:
        module: what to fill.
        arrays: by torch name.
        where: whose they are, for messages.
        known: names that may be there although the module has none of them, because it recomputes
            them. Integer buffers (counters, positions) may be absent.

    Raises:
        MismatchError: names are missing or unexpected, or shapes differ; all of them are listed.
    """
    require_fitting(module, arrays.checkpoint.headers, where=where, known=known)
    own = module.state_dict()
    module.load_state_dict(
        {name: to_torch(arrays[name]) for name in arrays if name in own}, strict=False
    )


def same_memory(tensor: torch.Tensor) -> Hashable:
    """Return what two names of one TENSOR have in common, and no part of it has; ``None`` without memory."""
    place = tensor.data_ptr()
    return (place, tensor.shape, tensor.stride(), tensor.dtype) if place else None


def require_fitting(
    module: nn.Module, headers: Mapping[str, Header], *, where: str, known: Collection[str] = ()
) -> None:
    """Refuse tensors with HEADERS that are not those of MODULE; a tied one needs one of its names."""
    state = module.state_dict()
    there = {same_memory(state[name]) for name in headers if name in state} - {None}
    needed = {
        n for n, it in state.items() if it.is_floating_point() and same_memory(it) not in there
    }
    own = {name: it for name, it in state.items() if name in needed or name in headers}
    given = {name: it for name, it in headers.items() if name in own or name not in known}
    if problems := list(different(own, given)):
        raise MismatchError(f"{where} does not fit {type(module).__name__}", problems)
