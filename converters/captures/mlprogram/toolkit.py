"""The one place that imports coremltools, which warns about every machine that is not a Mac."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout


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


with quiet():
    import coremltools
    from coremltools.converters.mil.frontend.milproto.load import load as load_mil
    from coremltools.converters.mil.mil import types

__all__ = ["coremltools", "load_mil", "quiet", "types"]
