"""Numbers that a module keeps beside its state.

Whole ones as tensors, as codecs keep their strides, are recorded as numbers: ``torch.export`` takes every tensor of a
module for one whose value is not known, and cannot pad by it or read it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor


class Counted(Exception):  # noqa: N818 - a reason to record again, which nobody sees
    """A module writes to such a number."""


def _numbers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return by name what MODULE itself keeps beside its state: one integer each, of known value."""
    saved = module._non_persistent_buffers_set
    held = {name: module._buffers[name] for name in saved} | vars(module)
    return {
        name: value
        for name, value in held.items()
        if isinstance(value, torch.Tensor) and value.ndim == 0 and value.dtype == torch.int64
    }


def _value(tensor: torch.Tensor) -> int | None:
    if isinstance(tensor, FakeTensor):
        return None if tensor.constant is None else int(tensor.constant)
    return None if tensor.is_meta else int(tensor)


def _read(value: int, given: list[torch.Tensor]) -> property:
    """Return an attribute that is a new tensor of VALUE each time; it is noted in GIVEN."""

    def read(_module: Any) -> torch.Tensor:
        given.append(torch.tensor(value))
        return given[-1]

    return property(read)


@contextlib.contextmanager
def numbers_known(module: torch.nn.Module) -> Iterator[None]:
    """Let the parts of MODULE give such numbers as constants in the block.

    Raises:
        Counted: one of them was updated, which would be forgotten.
    """
    given: list[torch.Tensor] = []
    classes = [(part, type(part)) for part in module.modules()]
    try:
        for part, cls in classes:
            known = {n: v for n, t in _numbers(part).items() if (v := _value(t)) is not None}
            if known:
                reads = {name: _read(value, given) for name, value in known.items()}
                part.__class__ = type(cls.__name__, (cls,), {**_names(cls), **reads})
        yield
    finally:
        for part, cls in classes:
            if type(part) is not cls:
                part.__class__ = cls
    if any(tensor._version for tensor in given):
        raise Counted


def _names(cls: type) -> dict[str, str]:
    return {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
