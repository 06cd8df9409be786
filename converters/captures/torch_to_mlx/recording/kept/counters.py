"""Numbers and lists that calls change in Python: a recording has them as they were once.

Whether that matters is seen by recording the module again as it is after its first call.
"""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram, _trace
from torch.utils import _pytree as pytree

from ......errors import UnsupportedError
from ..arguments import mapped
from .holders import Cached, Holder, Kept, draws, holders_of, kept, restore

DRAWN: Final = (
    "the module draws random numbers by Python's `random` or numpy, which a recording would draw once: draw them by"
    " torch, or give them as an input"
)
_RESTORING: Final = "_detect_attribute_assignment"  # it puts attributes back after a call


def refuse_counters(
    module: torch.nn.Module,
    tensors: Callable[[], Mapping[str, Any]],
    recorded: Callable[[], ExportedProgram],
) -> ExportedProgram:
    """Return what RECORDED makes of MODULE, called with TENSORS; what is kept in Python stays as it was.

    Raises:
        UnsupportedError: a call changes a number, one in a list or a dictionary, or the length of a
            list, and the next call computes something else for it, or it draws random numbers
            without torch.
    """
    holders = holders_of(module)
    before = kept(holders)
    names = [(vars(part), {*vars(part)}) for part in module.modules()]
    try:
        with _changes(holders) as changed:
            program = recorded()
        if DRAWN in changed and not _whatever_is_drawn(program, recorded):
            raise UnsupportedError(DRAWN)
        changed.pop(DRAWN, None)
        if changed and not _same(program, _recorded_after(holders, changed, recorded)):
            restore(holders, before)
            _refuse(sorted({name for _, name in changed}), _after_one(module, tensors()))
    finally:
        restore(holders, before)
        for (
            held,
            known,
        ) in names:  # torch leaves what the first call made, tensors without values among it
            for name in held.keys() - known:
                del held[name]
    return program


def _whatever_is_drawn(program: ExportedProgram, recorded: Callable[[], ExportedProgram]) -> bool:
    """Tell whether RECORDED gives PROGRAM for the least and the largest number that Python may draw.

    Layers to be dropped are drawn in evaluation mode too, where none is.
    """
    for drawn in (0.0, 1 - 2.0**-53):
        before, other = draws(), None
        always = mock.patch.object(random._inst, "random", lambda it=drawn: it)
        with always, contextlib.suppress(Exception):
            other = recorded()
        if draws() != before or not _same(program, other):
            return False
    return True


def _refuse(names: Sequence[str], alike: bool | None) -> None:
    """Raise ``UnsupportedError`` of NAMES, unless calls after the first are ALIKE; ``None`` if they go on changing."""
    listed = ", ".join(names)
    if alike is None:
        raise UnsupportedError(
            f"a call of the module changes numbers or lists in Python, and the next one computes otherwise for it"
            f" ({listed}), but a recording computes the same in every call: keep them in buffers, tensors that are"
            " changed in place"
        )
    if not alike:
        raise UnsupportedError(
            f"the first call of the module prepares it ({listed}), and later ones compute otherwise: call it"
            " once before it is captured"
        )


def _after_one(module: torch.nn.Module, tensors: Mapping[str, Any]) -> bool | None:
    """Say whether MODULE gives the same after a call with TENSORS; ``None`` if more calls change it further."""
    alike: bool | None = None
    with contextlib.suppress(Exception), torch.no_grad(), torch.random.fork_rng(devices=[]):
        fresh, used = copy.deepcopy(module), copy.deepcopy(module)
        holders, other = holders_of(used), mapped(_other, tensors)
        before = kept(holders)
        torch.manual_seed(0)
        wanted = fresh(**other)
        restore(holders, before)
        used(**tensors)
        once = kept(holders)
        torch.manual_seed(0)
        found = used(**other)
        if not _otherwise(once, kept(holders)):
            alike = _close(found, wanted)
    return alike


def _other(_name: str, value: Any) -> Any:
    """Return a tensor of other values that are as valid: another order, floats scaled."""
    if not isinstance(value, torch.Tensor) or value.numel() < 2:
        return value
    mixed = value.flatten().roll(1).reshape(value.shape)
    return mixed * 1.5 if mixed.is_floating_point() else mixed


def _close(found: Any, wanted: Any) -> bool:
    pairs = zip(pytree.tree_leaves(found), pytree.tree_leaves(wanted), strict=True)
    return all(
        torch.allclose(ours, theirs, equal_nan=True)
        if isinstance(ours, torch.Tensor)
        else ours == theirs
        for ours, theirs in pairs
    )


@contextlib.contextmanager
def _changes(holders: Sequence[Holder]) -> Iterator[Kept]:
    """Yield what HOLDERS keep otherwise after a call in the block that torch records; it puts attributes back then."""
    changed: Kept = {}
    restoring = getattr(_trace, _RESTORING)

    @contextlib.contextmanager
    def noted(module: torch.nn.Module) -> Iterator[None]:
        with restoring(module):
            drawn, before = draws(), kept(holders)
            yield
            changed.update(_otherwise(before, kept(holders)))
            changed.update({DRAWN: True} if draws() != drawn else {})

    with mock.patch.object(_trace, _RESTORING, noted):
        yield changed


def _otherwise(before: Kept, now: Kept) -> Kept:
    """Return what is kept NOW and was not BEFORE; answers of cached functions change no value."""
    return {
        key: value
        for key, value in now.items()
        if before.get(key) != value and not isinstance(value, Cached)
    }


def _recorded_after(
    holders: Sequence[Holder], changed: Kept, recorded: Callable[[], ExportedProgram]
) -> ExportedProgram | None:
    """Return what RECORDED makes where HOLDERS keep what was CHANGED; ``None`` where it fails with them."""
    restore(holders, changed)
    with contextlib.suppress(Exception):
        return recorded()
    return None


def _equal(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Tell whether ONE is TWO; a fake one has no values that could be compared."""
    fake = isinstance(one, FakeTensor) or isinstance(two, FakeTensor)
    return one is two or (not fake and torch.equal(one, two))


def _same(program: ExportedProgram, other: ExportedProgram | None) -> bool:
    """Tell whether both compute the same."""
    if other is None or program.graph_module.code != other.graph_module.code:
        return False
    one, two = (it.constants for it in (program, other))
    tensors = [name for name, value in one.items() if isinstance(value, torch.Tensor)]
    return one.keys() == two.keys() and all(_equal(one[name], two[name]) for name in tensors)
