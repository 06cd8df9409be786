"""What torch makes of every recording and hardly any is asked for, left out."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any, Final
from unittest import mock

import torch._dynamo.config
from torch.fx import proxy
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.utils import _traceback

from .composites import composites_kept

# Before, torch kept more of each node's calls than those of ``forward``.
_FORWARD_ONLY: Final = hasattr(proxy.TracerBase, "_record_forward_stack_traces_only")
_ALL_CALLS: Final = proxy.CapturedTraceback
_ANCHORS: Final = getattr(proxy, "_STACK_TRACE_ANCHORS", frozenset())


@contextlib.contextmanager
def unused_left_out(*, varying: bool = False) -> Iterator[None]:
    """Let ``torch.export`` make in the block only what is used of a recording; nothing recorded changes.

    Code of graphs is generated when it is called, lines of source files are read when a message
    shows them, of the calls that led to a node only those are looked at that torch keeps, and composite operations are registered as :func:`composites_kept` says. Where sizes
    are VARYING, results are not kept either, to be compared with those of every later operation: that
    took longer than what was found again.
    """
    keeps = torch._dynamo.config.fake_tensor_cache_enabled and not varying
    with (
        _use_lazy_graph_module(True),
        composites_kept(),
        mock.patch.object(_traceback, "_extract_symbolized_tb", _summary),
        mock.patch.object(proxy, "CapturedTraceback", _Calls if _FORWARD_ONLY else _ALL_CALLS),
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
