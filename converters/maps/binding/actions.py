"""What a step does to each kind of value; an action that would not be exact is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from ....errors import UnsupportedError
from ...checkpoints.base import Header
from ...common.dtypes import CODE, NUMPY, dtype_of
from ...values import Array, Dense, LowRank, Value
from ..notation.axes import Pieces, join, split
from ..notation.expressions import Number
from ..notation.rules import Affine, Bits, Cast, Change, Term, first_line
from ..programs.computed import Computed
from ..programs.preimages import Preimage, preimage, source_header
from ..programs.programs import Program, run
from .lowrank import low_rank
from .plan import Bound, Step

AFFINE: Final = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}
INVERSE: Final = {"+": "-", "*": "/"}


def transform(step: Step, values: Mapping[str, Value]) -> dict[str, Value]:
    """Return the targets of STEP, made of VALUES by source name.

    Of low-rank updates some may be missing (those tensors are not changed); of arrays none.

    Raises:
        UnsupportedError: the step has no action on updates, or VALUES are of both kinds.
    """
    arrays = {name: value.array for name, value in values.items() if isinstance(value, Dense)}
    updates = {name: value for name, value in values.items() if isinstance(value, LowRank)}
    if not updates:
        return {name: Dense(array) for name, array in dense(step, arrays).items()}
    if arrays:
        raise _refusal(step, values, "some of these are low-rank updates, others dense tensors")
    if isinstance(step.rule, Computed):
        why = "a program computes with dense tensors, not low-rank updates; merge the adapter"
        raise _refusal(step, values, why)
    try:
        return dict(low_rank(step, updates))
    except UnsupportedError as error:
        raise _refusal(step, values, str(error)) from None


def _refusal(step: Step, values: Mapping[str, Value], why: str) -> UnsupportedError:
    """Return the error that names the rule, its tensors and the reason WHY."""
    names = ", ".join(sorted(values))
    return UnsupportedError(f"`{first_line(step.rule)}` on {names}: {why}")


def rearrange(
    step: Step, arrays: Mapping[str, Array], sizes: Mapping[str, int]
) -> dict[str, Array]:
    """Return the targets of STEP with the values of ARRAYS as they are."""
    if step.rule.left[0].axes is None:
        return {step.target_names[0]: arrays[step.source_names[0]]}
    pieces: Pieces = {}
    for bound in step.sources:
        pieces |= split(_stacked(bound, arrays), bound.axes, sizes)
    targets: dict[str, Array] = {}
    for bound in step.targets:
        whole = join(pieces, bound.axes, sizes)
        members = whole.reshape(len(bound.names), *whole.shape[len(bound.family) :])
        # Indexing with an ellipsis keeps a tensor without axes an array.
        targets |= {name: members[at, ...] for at, name in enumerate(bound.names)}
    return targets


def _stacked(bound: Bound, arrays: Mapping[str, Array]) -> Array:
    if not bound.family:
        return arrays[bound.names[0]]
    members = np.stack([arrays[name] for name in bound.names])
    return members.reshape(*bound.family, *members.shape[1:])


def _computed(step: Step, program: Program, arrays: Mapping[str, Array]) -> list[Array]:
    """Return what PROGRAM makes of the sources, or what it makes of each index of them, stacked."""
    members = list(zip(*(bound.names for bound in step.sources), strict=True))
    first = run(program, [arrays[name] for name in members[0]])
    if not step.sources[0].family:
        return first
    # Filled one index at a time: a stack of experts is gigabytes, and is in memory only once.
    stacked = [np.empty((len(members), *array.shape), array.dtype) for array in first]
    for at, names in enumerate(members):
        made = run(program, [arrays[name] for name in names]) if at else first
        for whole, array in zip(stacked, made, strict=True):
            whole[at] = array
    return stacked


def dense(step: Step, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the targets of STEP as arrays: values changed where the rule says so."""
    if isinstance(step.rule, Computed):
        if not step.rule.forward:
            return {step.target_names[0]: undo(step, arrays).array}
        return dict(zip(step.target_names, _computed(step, step.rule.program, arrays), strict=True))
    if step.rule.reinterprets:
        return _reinterpreted(step, arrays)
    wider = _kept_as(step.targets)
    stored = {
        name: _undo(bound.term.changes, arrays[name], step.amounts, wider)
        for bound in step.sources
        for name in bound.names
    }
    targets = rearrange(step, stored, step.sizes)
    return {
        name: _do(bound.term.changes, targets[name], step.amounts)
        for bound in step.targets
        for name in bound.names
    }


def undo(step: Step, arrays: Mapping[str, Array]) -> Preimage:
    """Return what the program of STEP made its source of; see ``preimages``."""
    assert isinstance(step.rule, Computed)  # noqa: S101  (only these have programs)
    array = arrays[step.source_names[0]]
    header = source_header(step.rule.program, Header(CODE[array.dtype], array.shape))
    assert header is not None  # noqa: S101  (pass 1 found it)
    return preimage(step.rule.program, array, NUMPY[header.dtype])


def _reinterpreted(step: Step, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the targets of STEP, whose axes are of bytes."""
    raw = {n: np.ascontiguousarray(array).view(np.uint8) for n, array in arrays.items()}
    moved = rearrange(step, raw, step.sizes)
    return {
        name: np.ascontiguousarray(moved[name]).view(_stored_as(bound.term))
        for bound in step.targets
        for name in bound.names
    }


def _stored_as(term: Term) -> np.dtype[Any]:
    [bits] = term.changes
    return dtype_of(bits.dtype) if isinstance(bits, Bits) else np.dtype(np.uint8)


def _do(changes: tuple[Change, ...], array: Array, amounts: Mapping[str, Number]) -> Array:
    with np.errstate(all="ignore"):
        for change in changes:
            if isinstance(change, Cast):
                array = array.astype(dtype_of(change.dtype), copy=False)
            elif isinstance(change, Affine):
                array = _affine(change.symbol, array, change.value(amounts))
    return array


def _kept_as(bounds: tuple[Bound, ...]) -> str | None:
    """Return the dtype that the terms of BOUNDS say they are kept in, if they say one."""
    casts = [c.dtype for bound in bounds for c in bound.term.changes if isinstance(c, Cast)]
    return casts[0] if casts else None


def _undo(
    changes: tuple[Change, ...], array: Array, amounts: Mapping[str, Number], wider: str | None
) -> Array:
    """Undo CHANGES; what was cast after it was changed is taken back to the WIDER dtype before."""
    with np.errstate(all="ignore"):
        for change in reversed(changes):
            if isinstance(change, Affine):
                array = _affine(INVERSE[change.symbol], array, change.value(amounts))
            elif wider and np.can_cast(array.dtype, dtype_of(wider), "safe"):
                array = array.astype(dtype_of(wider), copy=False)
    return array


def _affine(symbol: str, array: Array, amount: Number) -> Array:
    return np.asarray(AFFINE[symbol](array, array.dtype.type(amount)))
