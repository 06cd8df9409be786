"""Arrays used again for every block of a weight."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from ..values import Array


class Room:
    """Arrays by name: fresh ones of megabytes take three times as long as the sums in them.

    >>> room = Room()
    >>> first = room("sum", (2, 3), np.float64)
    >>> np.shares_memory(first, room("sum", (2, 2), np.float64))
    True
    """

    def __init__(self) -> None:
        self._arrays: dict[tuple[str, np.dtype[Any]], Array] = {}

    def __call__(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return the array called NAME, with anything in it; it is anyone's at the next call."""
        key, size = (name, np.dtype(dtype)), prod(shape)
        if key not in self._arrays or self._arrays[key].size < size:
            self._arrays[key] = np.empty(size, dtype)
        return self._arrays[key][:size].reshape(shape)

    def place(self, name: str) -> Callable[[int], Array]:
        """Return what gives the array of bytes called NAME, of any length."""
        return lambda nbytes: self(name, (nbytes,), np.uint8)

    def copy(self, name: str, array: Array, dtype: Any) -> Array:
        """Return ARRAY in another dtype, as the array called NAME."""
        found = self(name, array.shape, dtype)
        np.copyto(found, array, casting="unsafe")
        return found
