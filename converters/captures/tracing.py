"""What torch makes of every recording and hardly any is asked for, left out."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import torch._dynamo.config
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.utils import _traceback

from .composites import composites_kept


@contextlib.contextmanager
def unused_left_out(*, varying: bool = False) -> Iterator[None]:
    """Let ``torch.export`` make in the block only what is used of a recording; nothing recorded changes.

    Code of graphs is generated when it is called, lines of source files are read when a message
    shows them, and composite operations are registered as :func:`composites_kept` says. Where sizes
    are VARYING, results are not kept either, to be compared with those of every later operation: that
    took longer than what was found again.
    """
    keeps = torch._dynamo.config.fake_tensor_cache_enabled and not varying
    with (
        _use_lazy_graph_module(True),
        composites_kept(),
        mock.patch.object(_traceback, "_extract_symbolized_tb", _summary),
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
