"""The heavy tests: nobody runs them unasked, and the samples together run each exactly once."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest

HEAVY = [f"tests/test_{name}.py::test" for name in "gbfaced"]


@pytest.fixture
def conftest(request):
    """Return this folder's conftest as a module."""
    path = request.path.parent / "conftest.py"
    return request.config.pluginmanager.getplugin(str(path))


class Item:
    """What pytest knows of a test, as far as the choice needs it."""

    def __init__(self, nodeid: str, *, heavy: bool) -> None:
        self.nodeid, self.heavy, self.skipped = nodeid, heavy, False

    def get_closest_marker(self, name):
        return (self.heavy and name == "heavy") or None

    def add_marker(self, marker):
        self.skipped = marker.name == "skip"


def run(conftest, **options) -> list[Item]:
    items = [Item(name, heavy=True) for name in HEAVY] + [Item("tests/test_z.py::t", heavy=False)]
    config = SimpleNamespace(getoption={"heavy": False, "heavy_sample": None, **options}.get)
    conftest.pytest_collection_modifyitems(config, items)
    return items


def names(items) -> list[str]:
    return [item.nodeid for item in items if not item.skipped]


def test_heavy_tests_wait_to_be_asked_for(conftest):
    assert names(run(conftest)) == ["tests/test_z.py::t"]


def test_heavy_tests_run_last(conftest):
    assert names(run(conftest, heavy=True)) == ["tests/test_z.py::t", *HEAVY]


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 9])
def test_the_samples_cover_every_heavy_test_once(conftest, parts):
    samples = (conftest.sample(f"{part}/{parts}") for part in range(100, 100 + parts))
    ran = Counter(name for one in samples for name in names(run(conftest, heavy_sample=one)))
    assert {ran[name] for name in HEAVY} == {1}


@pytest.mark.parametrize("text", ["", "1", "1/0", "a/b", "1/2/3"])
def test_a_sample_that_is_none_is_refused(conftest, text):
    with pytest.raises((ValueError, ZeroDivisionError)):
        conftest.sample(text)
