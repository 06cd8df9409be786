"""What torch registers for its composite operations before it decomposes a program, kept for the next one."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
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


_known: Final[dict[OpOverload, _Registered]] = {}


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
    kept = {op: _known[op] for op, decomposition in table.items() if _is_kept(op, decomposition)}
    new = {op: decomposition for op, decomposition in table.items() if op not in kept}
    # Of an operation that has a rule torch makes none, and takes this one away after the block.
    before = {op: dict(op.py_kernels) for op in new if op not in op_implementations_dict}
    with _BY_TORCH(new), _put(kept):
        for op, kernels in before.items():
            rule = op_implementations_dict[op]
            _known[op] = _Registered(new[op], kernels, dict(op.py_kernels), rule)
        yield


def _is_kept(op: OpOverload, decomposition: Callable[..., Any]) -> bool:
    """Whether torch would register for OP what it did before: by the same DECOMPOSITION, over the same kernels."""
    kept = _known.get(op)
    return (
        kept is not None
        and kept.decomposition is decomposition
        and kept.before == op.py_kernels
        and op not in op_implementations_dict
    )


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
