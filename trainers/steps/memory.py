"""The memory that a run takes, measured alike in every backend."""

from __future__ import annotations

import gc
import resource
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from ..memory.freed import give_back

PAUSE: Final = 0.1  # seconds between two looks at memory that is being freed
SMALL: Final = 8 << 20  # bytes that MLX may hold without a look


class Memory:
    """The most memory beyond what the process held when this was made, in bytes.

    It is the growth of the process's resident size, in which arrays on the CPU and what a framework
    keeps for the next ones lie, plus what DEVICE returns: bytes of a device with memory of its own.
    What was freed again before the first update, such as the other backend's copy for preflight, does
    not count: until then only sizes at rest do.
    """

    def __init__(self, device: Callable[[], int] = lambda: 0) -> None:
        _give_back()  # what earlier work left behind would hide as much of this one's
        self._device = device
        self._start = self._most = _resident()
        self._before: int | None = None

    def begin(self) -> None:
        """Count peaks from now on; only the first call does something."""
        if self._before is None:
            self._before = _largest()

    def peak(self) -> int:
        """Return the most so far."""
        largest = _largest()
        if self._before is not None and largest > self._before:
            self._most = max(self._most, largest)
        self._most = max(self._most, _resident())
        return self._most - self._start + self._device()


def _give_back() -> None:
    """Collect garbage, and wait while arrays go back: MLX frees them in a thread of its own, a little later."""
    core: Any = sys.modules.get("mlx.core")
    gc.collect()
    before = -1
    while core and (held := core.get_active_memory()) > SMALL and held != before:
        before = held
        time.sleep(PAUSE)
    give_back()


def _resident() -> int:
    import psutil

    return int(psutil.Process().memory_info().rss)


def _largest() -> int:
    """Return the largest resident size that this process ever had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
