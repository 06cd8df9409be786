"""What torch registers for its composite operations before it decomposes a program, kept for the next one."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any, Final, NamedTuple
from unittest import mock

from torch._export import utils
from torch._ops import OpOverload
from torch._subclasses.fake_impls import op_implementations_dict
from torch.export import exported_program

_LOOK_UP: Final = "_materialize_cpp_cia_ops"
_REGISTER: Final = "_override_composite_implicit_decomp"
_BY_TORCH: Final = getattr(exported_program, _REGISTER)

Kernels = dict[Any, Callable[..., Any]]


class _Registered(NamedTuple):
    """What torch registers for an operation by its decomposition, over the kernels before."""

    decomposition: Callable[..., Any]
    before: Kernels
    kernels: Kernels
    rule: Callable[..., Any]  # for fake tensors


_MOST: Final = 4  # tables that take turns: what is kept, composites as a whole, a format's own
_known: Final[dict[OpOverload, list[_Registered]]] = {}


@contextlib.contextmanager
def composites_kept() -> Iterator[None]:
    """Look composite operations up once in the block, not once for each namespace, and register them as kept.

    torch makes a dozen kernels for each of hundreds of operations, twice in every
    ``run_decompositions``: half the time that a small program takes.
    """
    once = functools.cache(getattr(utils, _LOOK_UP))
    with (
        mock.patch.object(utils, _LOOK_UP, once),
        mock.patch.object(exported_program, _REGISTER, _registered),
    ):
        yield


@contextlib.contextmanager
def _registered(table: Mapping[OpOverload, Callable[..., Any]]) -> Iterator[None]:
    """Register TABLE in the block as torch does, which makes only what it did not make before."""
    found = {op: _kept(op, decomposition) for op, decomposition in table.items()}
    kept = {op: made for op, made in found.items() if made is not None}
    new = {op: decomposition for op, decomposition in table.items() if op not in kept}
    # Of an operation that has a rule torch makes none, and takes this one away after the block.
    before = {op: dict(op.py_kernels) for op in new if op not in op_implementations_dict}
    with _BY_TORCH(new), _put(kept):
        for op, kernels in before.items():
            made = _Registered(new[op], kernels, dict(op.py_kernels), op_implementations_dict[op])
            _known[op] = [made, *_known.get(op, ())][:_MOST]
        yield


def _kept(op: OpOverload, decomposition: Callable[..., Any]) -> _Registered | None:
    """Return what torch registered for OP before by the same DECOMPOSITION, over the same kernels."""
    if op in op_implementations_dict:
        return None
    alike = (it for it in _known.get(op, ()) if _same(it.decomposition, decomposition))
    return next((it for it in alike if it.before == op.py_kernels), None)


def _same(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether ONE does what OTHER does: torch's tables make functions of the same code anew each time."""
    return one is other or _parts(one) == _parts(other)


def _parts(function: Callable[..., Any]) -> tuple[Any, ...]:
    """Return what a function computes by; it is told from all others where it reads what is around it."""
    if isinstance(function, functools.partial):
        return _parts(function.func), function.args, function.keywords
    if not isinstance(function, FunctionType) or function.__closure__:
        return (id(function),)
    given = function.__defaults__, function.__kwdefaults__
    return id(function.__code__), id(function.__globals__), *given


@contextlib.contextmanager
def _put(kept: Mapping[OpOverload, _Registered]) -> Iterator[None]:
    """Register KEPT in the block, and what was there before after it, as torch does."""
    for op, made in kept.items():
        _set(op, made.kernels)
        op_implementations_dict[op] = made.rule
    try:
        yield
    finally:
        for op, made in kept.items():
            _set(op, made.before)
            op_implementations_dict.pop(op, None)


def _set(op: OpOverload, kernels: Kernels) -> None:
    """Let KERNELS be those of OP, as a copy: it may be registered for."""
    op.py_kernels.clear()
    op.py_kernels.update(kernels)
    op._dispatch_cache.clear()
