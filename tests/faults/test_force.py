"""``--force`` takes nothing that is not ours: some verbs here, all in ``benchmarks/force.py``."""

from __future__ import annotations

from itertools import cycle

import pytest

from weighbridge.tests.faults.commands import COMMANDS
from weighbridge.tests.faults.conftest import QUICK
from weighbridge.tests.faults.keeping import Results, visit
from weighbridge.tests.faults.worlds import World
from weighbridge.tests.faults.zoo import ANIMALS


@pytest.fixture(scope="module")
def worlds(server, sources, tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    return {n: World(folder / n, server, *sources, (n, c)) for n, c in COMMANDS.items()}


@pytest.fixture(scope="module")
def results(worlds):
    return Results(list(worlds.values()))


# Results of ours that take seconds to make; the heavy test visits them with every command.
DEAR = {f"{kind} of ours" for kind in ("a map", "a package", "an asset", "a run", "an adapter")}


def test_no_byte_is_lost_in_any_folder_that_is_not_ours(worlds, results):
    assert all(results[command] for command in QUICK)  # made before their places are taken
    names = [name for name in ANIMALS if name not in DEAR]
    visits = [visit(worlds[c], n, results) for n, c in zip(names, cycle(QUICK), strict=False)]
    assert [one for one in visits if one.problems] == []
    assert len(visits) >= 30


@pytest.mark.heavy
def test_no_command_loses_a_byte_in_folders_that_are_not_ours(world, results):
    visits = [visit(world, name, results) for name in ANIMALS]
    assert [one for one in visits if one.problems] == []
    assert len(visits) >= 30
