"""A warm process and sources that every test of faults shares."""

from __future__ import annotations

import pytest

from weighbridge.tests.faults.commands import COMMANDS, make_sources, varied
from weighbridge.tests.faults.server import Server
from weighbridge.tests.faults.shim import missing
from weighbridge.tests.faults.worlds import World

# One that writes a model, a single file and a golden; the others write by the same code.
QUICK = ("torch-to-mlx", "gguf", "record")
EVERY = [pytest.param(name, marks=() if name in QUICK else pytest.mark.heavy) for name in COMMANDS]


def pytest_generate_tests(metafunc):
    """Run a test that asks for ``world`` once for every command."""
    if "world" in metafunc.fixturenames:
        metafunc.parametrize("world", EVERY, indirect=True, scope="session")


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    if why := missing():
        pytest.skip(why)
    with Server(tmp_path_factory.mktemp("faults")) as server:
        yield server


def _runs(item, name):
    """Tell whether ITEM tries the command NAME, and is not skipped."""
    given = getattr(item, "callspec", None)
    return given and given.params.get("world") == name and not item.get_closest_marker("skip")


@pytest.fixture(scope="session")
def sources(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    asked = {name for name in COMMANDS for item in request.session.items if _runs(item, name)}
    made = make_sources(folder / "sources", asked | {*QUICK})  # whose results every test may visit
    return made, varied(made, folder / "others")


@pytest.fixture(scope="session")
def world(request, server, sources, tmp_path_factory):
    """Return the folder in which one command is tried again and again."""
    name = request.param
    folder = tmp_path_factory.mktemp(name)
    return World(folder, server, *sources, (name, COMMANDS[name]))
