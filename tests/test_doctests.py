"""Every example in a docstring runs as written."""

from __future__ import annotations

import doctest
import importlib
import linecache
import pkgutil

import pytest

import weighbridge

MODULES = [module.name for module in pkgutil.walk_packages(weighbridge.__path__, "weighbridge.")]
# The repository root is the package, so its other folders look like parts of it.
OURS = ("converters", "jobs", "parity", "trainers", "cli", "console", "errors")


@pytest.mark.parametrize(
    "name", [name for name in MODULES if name.split(".")[1] in OURS] or pytest.fail("no modules")
)
def test_examples_in_docstrings(name):
    linecache.clearcache()  # doctest looks at the time of every file in it, for every example
    assert doctest.testmod(importlib.import_module(name)).failed == 0
