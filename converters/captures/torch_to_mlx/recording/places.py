"""Lines of code to show: the innermost one that is neither torch's, nor Python's, nor ours."""

from __future__ import annotations

import linecache
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final

import torch
from torch.fx import Node

from ....common.users_code import is_installed, is_ours, shown

_TORCH: Final = str(Path(torch.__file__).parent)

_FRAME: Final = re.compile(r'File "(.+)", line (\d+), in .+\n(.+)')

Frame = tuple[FrameType, int]


def is_model_code(frame: FrameType) -> bool:
    """Say whether FRAME runs code of a model or of its user."""
    file = frame.f_code.co_filename
    standard = is_installed(Path(file)) and "site-packages" not in file
    passes_on = frame.f_code.co_name == "__torch_function__"
    return not (file.startswith((_TORCH, "<")) or standard or passes_on or is_ours(frame))


def _library(frame: FrameType) -> bool:
    return is_installed(Path(frame.f_code.co_filename))


def _written(frame: FrameType, line: int) -> str:
    """Return ``FILE:LINE: source`` of FRAME."""
    file = frame.f_code.co_filename
    source = linecache.getline(file, line).strip()
    place = f"{shown(file)}:{line}"
    return f"{place}: {source}" if source else place


def _chosen(frames: Iterable[Frame]) -> list[str]:
    """Return the last telling line of FRAMES, outermost first, and the last that no library has."""
    telling = [frame for frame in frames if is_model_code(frame[0])]
    if not telling:
        return []
    own = [frame for frame in telling if not _library(frame[0])]
    last = [telling[-1]]
    return [_written(*frame) for frame in (last if own[-1:] in ([], last) else [*last, own[-1]])]


def lines_of(trace: TracebackType | None) -> list[str]:
    """Return where an error arose: the model's line, and the user's own if that is another."""
    return _chosen(traceback.walk_tb(trace))


def _callers() -> Iterator[Frame]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame, frame.f_lineno
        frame = frame.f_back


def line_of_caller() -> str:
    """Return ``FILE:LINE: source`` of the model's code that is running, empty where there is none."""
    return next((_written(*frame) for frame in _callers() if is_model_code(frame[0])), "")


def forward_of_caller() -> tuple[str, int]:
    """Return file and line of the innermost ``forward`` that is running, which a recorded node keeps too."""
    found = (
        (it.f_code.co_filename, line) for it, line in _callers() if it.f_code.co_name == "forward"
    )
    return next(found, ("", 0))


def forward_of_node(node: Node) -> tuple[str, int]:
    """Return file and line of the ``forward`` that NODE was recorded from."""
    found = _FRAME.findall(node.meta.get("stack_trace", ""))
    return (found[-1][0], int(found[-1][1])) if found else ("", 0)


def line_of_node(node: Node) -> str:
    """Return ``FILE:LINE: source`` of the code that NODE was recorded from, empty where that is not known."""
    found = _FRAME.findall(node.meta.get("stack_trace", ""))
    return f"{shown(found[-1][0])}:{found[-1][1]}: {found[-1][2].strip()}" if found else ""
