"""Numbers that a module keeps beside its state.

Whole ones as tensors, as codecs keep their strides, are recorded as numbers: ``torch.export`` takes every tensor of a
module for one whose value is not known, and cannot pad by it or read it.

Those that calls change in Python are recorded as they were once. Whether that matters is seen by recording the module
again as it is after its first call.
"""

from __future__ import annotations

import contextlib
import copy
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram, _trace

from .....errors import UnsupportedError

Kept = dict[tuple[str, str], Any]  # module, attribute -> a number, or a list or dictionary

_NUMBERS: Final = (bool, int, float)  # a text names a way, which stays as the first call chose it
_LISTS: Final = (list, deque)
_MODE: Final = "training"  # which recording itself changes, to see gradients
_RESTORING: Final = "_detect_attribute_assignment"  # it puts them back after a call


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


def refuse_counters(
    module: torch.nn.Module, recorded: Callable[[], ExportedProgram]
) -> ExportedProgram:
    """Return what RECORDED makes of MODULE, whose attributes stay as they were.

    Raises:
        UnsupportedError: a call changes a number, one in a list or a dictionary, or the length of a
            list, and the next call computes something else for it.
    """
    before = _kept(module)
    with _states_after_calls() as states:
        program = recorded()
    changed = {
        key: value
        for state in states
        for key, value in state.items()
        if key in before and before[key] != value
    }
    if changed and not _same(program, _recorded_after(module, changed, recorded)):
        names = ", ".join(sorted(".".join(filter(None, key)) for key in changed))
        raise UnsupportedError(
            f"a call of the module changes numbers or lists in Python, and the next one computes otherwise for it"
            f" ({names}), but a recording computes the same in every call: keep them in buffers, tensors that are"
            " changed in place"
        )
    return program


def _kept(module: torch.nn.Module) -> Kept:
    """Return what numbers MODULE keeps, in lists and dictionaries too, and how long its lists are."""
    return {
        (path, name): _counted(value)
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if name != _MODE
        if isinstance(value, (*_NUMBERS, *_LISTS)) or (name[:1] != "_" and _of_numbers(value))
    }


def _counted(value: Any) -> Any:
    """Return a number, or a copy of a list or dictionary of numbers; of other lists only the length counts."""
    if isinstance(value, _LISTS) and not all(isinstance(it, _NUMBERS) for it in value):
        return [None] * len(value)
    return copy.copy(value)


def _of_numbers(value: Any) -> bool:
    found = value.values() if type(value) is dict else ()
    return bool(found) and all(isinstance(it, _NUMBERS) for it in found)


@contextlib.contextmanager
def _states_after_calls() -> Iterator[list[Kept]]:
    """Yield what modules keep after each call in the block that torch records; it puts all back then."""
    states: list[Kept] = []
    restoring = getattr(_trace, _RESTORING)

    @contextlib.contextmanager
    def noted(module: torch.nn.Module) -> Iterator[None]:
        with restoring(module):
            yield
            states.append(_kept(module))

    with mock.patch.object(_trace, _RESTORING, noted):
        yield states


def _recorded_after(
    module: torch.nn.Module, values: Kept, recorded: Callable[[], ExportedProgram]
) -> ExportedProgram | None:
    """Return what RECORDED makes of MODULE with other VALUES; ``None`` where it fails with them."""
    with contextlib.ExitStack() as stack:
        for (path, name), value in values.items():
            held = vars(module.get_submodule(path))
            stack.enter_context(mock.patch.dict(held, {name: value}))
        with contextlib.suppress(Exception):
            return recorded()
    return None


def _same(program: ExportedProgram, other: ExportedProgram | None) -> bool:
    """Tell whether both compute the same."""
    if other is None or program.graph_module.code != other.graph_module.code:
        return False
    one, two = (it.constants for it in (program, other))
    tensors = [name for name, value in one.items() if isinstance(value, torch.Tensor)]
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in tensors)
