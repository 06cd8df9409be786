"""``--force`` takes nothing that is not ours: some verbs here, all in ``benchmarks/force.py``."""

from __future__ import annotations

import pytest

from weighbridge.tests.faults.commands import COMMANDS
from weighbridge.tests.faults.keeping import results_of, visit
from weighbridge.tests.faults.worlds import World
from weighbridge.tests.faults.zoo import ANIMALS


@pytest.fixture(scope="module")
def results(server, sources, tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    worlds = [World(folder / n, server, *sources, (n, c)) for n, c in COMMANDS.items()]
    return results_of(worlds)


def test_no_byte_is_lost_in_folders_that_are_not_ours(world, results):
    visits = [visit(world, name, results) for name in ANIMALS]
    assert [one for one in visits if one.problems] == []
    assert len(visits) >= 30
