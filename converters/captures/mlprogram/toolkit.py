"""The one place that imports coremltools, which warns about every machine that is not a Mac."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Silence coremltools' own logger and Python's warnings inside the block, and only there."""
    logger = logging.getLogger("coremltools")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


with quiet():
    import coremltools
    from coremltools import proto
    from coremltools.converters.mil.frontend.milproto.load import load as load_mil
    from coremltools.converters.mil.mil import types

__all__ = ["coremltools", "load_mil", "proto", "quiet", "types"]
