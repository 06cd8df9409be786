"""The one place that imports coremltools, which warns about every machine that is not a Mac."""

from __future__ import annotations

import io
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.metadata import PackageNotFoundError, version
from typing import Final

_SKLEARN: Final = "sklearn"
_NEWEST: Final = (1, 5)  # of scikit-learn, that coremltools 9.0 takes


@contextmanager
def quiet() -> Iterator[None]:
    """Silence coremltools inside the block, and only there: logger, warnings and progress bars."""
    logger = logging.getLogger("coremltools")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    bars = io.StringIO()
    try:
        with warnings.catch_warnings(), redirect_stdout(bars), redirect_stderr(bars):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


@contextmanager
def _without_sklearn() -> Iterator[None]:
    """Hide scikit-learn in the block where coremltools would only import it, pandas too, and then refuse its version.

    That is half of the time that coremltools takes to import.
    """
    if _SKLEARN in sys.modules or not _too_new():
        yield
        return
    sys.modules[_SKLEARN] = None  # type: ignore[assignment]  # as Python's documentation says to hide one
    try:
        yield
    finally:
        del sys.modules[_SKLEARN]


def _too_new() -> bool:
    try:
        return tuple(map(int, version("scikit-learn").split(".")[:2])) > _NEWEST
    except (PackageNotFoundError, ValueError):
        return False


with quiet(), _without_sklearn():
    import coremltools
    from coremltools.converters.mil.frontend.milproto.load import load as load_mil
    from coremltools.converters.mil.mil import types

__all__ = ["coremltools", "load_mil", "quiet", "types"]
