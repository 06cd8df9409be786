"""What torch makes of every recording and hardly any is asked for, left out."""

from __future__ import annotations

import contextlib
import functools
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import CodeType, FrameType, FunctionType
from typing import Any, Final, NamedTuple
from unittest import mock

import torch._dynamo.config
from torch._export import utils
from torch._ops import OpOverload
from torch._subclasses.fake_impls import op_implementations_dict
from torch.export import exported_program
from torch.fx import proxy
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.utils import _traceback

_LOOK_UP: Final = "_materialize_cpp_cia_ops"
_REGISTER: Final = "_override_composite_implicit_decomp"
_BY_TORCH: Final = getattr(exported_program, _REGISTER)

Kernels = dict[Any, Callable[..., Any]]
# Before, torch kept more of each node's calls than those of ``forward``.
_FORWARD_ONLY: Final = hasattr(proxy.TracerBase, "_record_forward_stack_traces_only")
_CALLS: Final = "CapturedTraceback"
_ALL_CALLS: Final = getattr(proxy, _CALLS)
_ANCHORS: Final[Collection[tuple[str, str]]] = getattr(proxy, "_STACK_TRACE_ANCHORS", frozenset())


@contextlib.contextmanager
def unused_left_out(*, varying: bool = False) -> Iterator[None]:
    """Let ``torch.export`` make in the block only what is used of a recording; nothing recorded changes.

    Code of graphs is generated when it is called, lines of source files are read when a message
    shows them, of the calls that led to a node only those are looked at that torch keeps, and
    composite operations are registered as :func:`composites_kept` says. Where sizes are VARYING,
    results are not kept either, to be compared with those of every later operation: that took
    longer than what was found again.
    """
    keeps = torch._dynamo.config.fake_tensor_cache_enabled and not varying
    with (
        _use_lazy_graph_module(True),
        composites_kept(),
        mock.patch.object(_traceback, "_extract_symbolized_tb", _summary),
        mock.patch.object(proxy, _CALLS, _Calls if _FORWARD_ONLY else _ALL_CALLS),
        torch._dynamo.config.patch(fake_tensor_cache_enabled=keeps),
    ):
        yield


def _summary(frames: Sequence[Mapping[str, Any]], skip: int) -> traceback.StackSummary:
    """Return FRAMES, innermost first, but the first SKIP, turned around and without the text of their lines."""
    summary = traceback.StackSummary()
    for frame in reversed(frames[skip:]):
        place = frame["filename"], frame["line"], frame["name"]
        summary.append(traceback.FrameSummary(*place, lookup_line=False))
    return summary


class _Calls:
    """Those calls that led to a node of which torch keeps the lines: of ``forward``, and of what it names so."""

    @staticmethod
    def extract() -> _Calls:
        return _Calls()

    def summary(self) -> traceback.StackSummary:
        """Return the calls, outermost first, without the text of their lines."""
        summary = traceback.StackSummary()
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if _is_kept(code := frame.f_code):
                place = code.co_filename, frame.f_lineno, code.co_name
                summary.append(traceback.FrameSummary(*place, lookup_line=False))
            frame = frame.f_back
        summary.reverse()
        return summary


def _is_kept(code: CodeType) -> bool:
    return (
        code.co_name == "forward"
        or code.co_filename.endswith("torch/__init__.py")
        or (code.co_filename, code.co_name) in _ANCHORS
    )


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
    """Whether ONE does what OTHER does: torch's tables make functions of the same code each time."""
    return one is other or _parts(one) == _parts(other)


def _parts(function: Callable[..., Any]) -> tuple[Any, ...]:
    """Return what a function computes by; it is told from all others where it reads what is around it."""
    if isinstance(function, functools.partial):
        return _parts(function.func), *_given(function.args, function.keywords)
    if not isinstance(function, FunctionType) or function.__closure__:
        return (id(function),)
    given = _given(function.__defaults__, function.__kwdefaults__)
    return id(function.__code__), id(function.__globals__), *given


def _given(args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> tuple[Any, ...]:
    return [*map(id, args or ())], {name: id(value) for name, value in (kwargs or {}).items()}


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
