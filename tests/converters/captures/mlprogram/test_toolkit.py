"""coremltools' noise is silenced, and nobody else's."""

from __future__ import annotations

import importlib
import logging
import sys
import warnings

import pytest
from coremltools import _deps

from weighbridge.converters.captures.mlprogram import toolkit
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


@pytest.mark.parametrize(("installed", "hidden"), [("1.6.0", True), ("1.5.1", False), ("?", False)])
def test_scikit_learn_is_hidden_only_while_coremltools_would_refuse_it(
    monkeypatch, installed, hidden
):
    monkeypatch.setattr(toolkit, "version", lambda _package: installed)
    monkeypatch.delitem(sys.modules, "sklearn", raising=False)
    with toolkit._without_sklearn():
        assert ("sklearn" in sys.modules) == hidden
        if hidden:
            with pytest.raises(ImportError):
                importlib.import_module("sklearn")
    assert "sklearn" not in sys.modules


def test_what_is_imported_already_stays(monkeypatch):
    monkeypatch.setattr(toolkit, "version", lambda _package: "1.6.0")
    monkeypatch.setitem(sys.modules, "sklearn", sys)
    with toolkit._without_sklearn():
        assert sys.modules["sklearn"] is sys
    assert sys.modules["sklearn"] is sys


def test_the_newest_version_that_coremltools_takes_is_its_own():
    assert tuple(map(int, _deps._SKLEARN_MAX_VERSION.split(".")[:2])) == toolkit._NEWEST
