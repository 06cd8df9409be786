"""Loops compiled by numba: numpy goes through memory for each operation, a loop once for all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numba

Loop = TypeVar("Loop", bound=Callable[..., Any])
# Sums may be taken in any order; infinite and missing numbers keep their meaning.
ANY_ORDER: Final = frozenset({"arcp", "contract", "nsz", "reassoc"})


def compiled(loop: Loop, *, fast: frozenset[str] = frozenset()) -> Loop:
    """Return LOOP as machine code that runs outside of Python's lock.

    It is compiled at its first call, in a second or so, and kept on disk where a folder can be written.

    Args:
        loop: of arrays and numbers.
        fast: LLVM's flags of arithmetic that need not be exact, such as ``ANY_ORDER``; none by default.
    """
    compiler: Any = numba.njit(nogil=True, fastmath=set(fast), error_model="numpy")(loop)
    with contextlib.suppress(RuntimeError):  # no such folder: compiled again in each process
        compiler.enable_caching()
    return cast(Loop, compiler)


def in_any_order(loop: Loop) -> Loop:
    """Return LOOP compiled, its sums taken in any order."""
    return compiled(loop, fast=ANY_ORDER)
