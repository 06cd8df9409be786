"""coremltools' noise is silenced, and nobody else's."""

from __future__ import annotations

import logging
import warnings

import pytest

from weighbridge.converters.captures.mlprogram.toolkit import quiet


def test_logging_and_warnings_are_as_before_after_the_block(capsys):
    logger = logging.getLogger("coremltools")
    before, root = logger.level, logging.getLogger().level
    with quiet():
        logger.warning("unheard")
        warnings.warn("unseen", stacklevel=1)
        print("unseen")  # noqa: T201
    assert (logger.level, logging.getLogger().level) == (before, root)
    assert capsys.readouterr() == ("", "")
    with pytest.warns(UserWarning, match="heard"):
        warnings.warn("heard", stacklevel=1)


def test_an_error_in_the_block_still_restores_the_logger():
    logger = logging.getLogger("coremltools")
    before = logger.level
    with pytest.raises(ValueError, match="inside"), quiet():
        raise ValueError("inside")
    assert logger.level == before
