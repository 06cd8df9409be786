"""The state of a step at one moment, held by reference: free until an update writes over it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from ...converters.values import Array
from ..memory.advice import budget
from ..memory.readings import read_memory

SHARE: Final = 0.02  # of the memory, which a state may have that is held while the next one is made


class Held:
    """The tensors of a state, until they are forgotten.

    Args:
        tensors: by name.
        read: returns a copy of one; it may be called by another thread.
    """

    def __init__(self, tensors: Mapping[str, Any], read: Callable[[Any], Array]) -> None:
        self._tensors: Mapping[str, Any] | None = tensors
        self._read = read
        self._lock = threading.Lock()

    def forget(self) -> None:
        """Hold nothing from now on; wait for who is reading."""
        with self._lock:
            self._tensors = None

    def arrays(self) -> dict[str, Array] | None:
        """Return copies of all of them; ``None`` once they are forgotten."""
        with self._lock:
            if self._tensors is None:
                return None
            return {name: self._read(it) for name, it in self._tensors.items()}


NOTHING: Final = Held({}, lambda it: it)
NOTHING.forget()


def fits_twice(size: int) -> bool:
    """Return whether there is room for a second state of SIZE bytes without anybody noticing."""
    return size <= SHARE * budget(read_memory()).limit
