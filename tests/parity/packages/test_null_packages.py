"""Packages of others held against sources that they were not made of: nothing is explained by chance."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from weighbridge.converters.models import open as open_model
from weighbridge.tests.support.coreml.foreign import foreign

pytestmark = pytest.mark.filterwarnings("ignore")
SCRIPTS = Path(__file__).parents[3] / "benchmarks"
OTHERS = ("other numbers", "other orders of rows", "a tenth larger", "twice as large", "negated")


@pytest.fixture(scope="module")
def study():
    """Return the benchmark's module."""
    sys.path.insert(0, str(SCRIPTS))
    try:
        import null_packages
    finally:
        sys.path.remove(str(SCRIPTS))
    return null_packages


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a series model's source and its package, as plain coremltools makes it."""
    return foreign("Conv1d series", tmp_path_factory.mktemp("null"), "float16")


def test_its_own_source_explains_every_constant(study, made):
    found = study.explained(open_model(made.source), made.package)
    assert found
    assert all(found.values())


@pytest.mark.parametrize("null", OTHERS)
def test_another_source_explains_no_constant(null, study, made):
    other = study.changed(open_model(made.source), study.NULLS[null])
    assert not any(study.explained(other, made.package).values())
