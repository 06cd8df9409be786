"""What may go wrong while a command writes, at a few moments of each; ``benchmarks`` take every one.

``kill -9``: the target is nothing, the old or the new, and the same command ends well. Disks that are
full, forbid or fail: one line, exit 3, nothing left, nothing lost. ``--force``: nothing is taken that
is not ours. One file, so that one warm process serves all of it.
"""

from __future__ import annotations

import errno
import signal
from itertools import cycle

import pytest

from weighbridge.tests.faults.commands import COMMANDS
from weighbridge.tests.faults.conftest import QUICK
from weighbridge.tests.faults.keeping import Results, visit
from weighbridge.tests.faults.mounts import mounted, remount
from weighbridge.tests.faults.shim import ANY, FAILING, GROWING, Action, Fault, Kind
from weighbridge.tests.faults.worlds import FAILED, PASSED, World, files_in, moments
from weighbridge.tests.faults.zoo import ANIMALS

FULL = Fault(0, Action.FAIL, errno.ENOSPC, GROWING, sticky=True)
SICK = Fault(0, Action.FAIL, errno.EIO, FAILING)
TORN = Fault(0, Action.HALF, errno.ENOSPC, Kind.WRITE, sticky=True)
QUOTA = Fault(0, Action.FAIL, errno.EDQUOT, Kind.WRITE | Kind.CLOSE, sticky=True)
TAKEN = [Fault(0, Action.SHORT), Fault(0, Action.FAIL, errno.EINTR, Kind.WRITE)]


def test_a_killed_command_leaves_all_or_nothing_and_its_rerun_the_same_bytes(world):
    rows = []
    for force in (False,) if world.command.trains else (False, True):
        calls = world.calls(force=force)
        faults = [Fault(n) for n in moments(calls, 3)]
        faults += [Fault(n, Action.TORN) for n in moments(calls, 1, Kind.WRITE)]
        rows += [world.kill(fault, force=force) for fault in faults]
    assert [row for row in rows if row.problems] == []
    assert {row.code for row in rows} == {-9}


@pytest.mark.parametrize("fault", [FULL, SICK, TORN, QUOTA], ids=["full", "sick", "torn", "quota"])
def test_a_disk_that_fails_at_any_moment_leaves_one_line_and_nothing_else(world, fault):
    replaces = not world.command.trains
    chosen = moments(world.calls(force=replaces), 2, fault.kinds)
    rows = [world.fail(fault._replace(at=n), force=replaces) for n in chosen]
    assert [row for row in rows if row.problems] == []


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES], ids=["read-only", "forbidden"])
def test_a_target_that_may_not_be_written_is_refused(world, code):
    row = world.fail(Fault(0, Action.FAIL, code, ANY, sticky=True))
    assert (row.code, row.problems) == (FAILED, ())


@pytest.mark.parametrize("fault", TAKEN, ids=["short", "interrupted"])
def test_a_write_that_takes_less_than_it_was_given_is_continued(world, fault):
    for n in moments(world.calls(), 2, Kind.WRITE):
        row = world.fail(fault._replace(at=n))
        assert row.problems == ()
        assert row.code in (FAILED, *PASSED)


def test_two_runs_at_once_are_one_run_and_a_refusal(world):
    row = world.twice(len(world.calls()) // 2)
    assert (row.found, row.problems) == ("new", ())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_command_that_is_told_to_end_leaves_nothing(world, number):
    calls = world.calls()
    middle = moments(calls, 3)[1]
    world.prepare(force=False)
    before = files_in(world.place)
    ended = world.run(Fault(middle, Action.STOP), meanwhile={"signal": int(number)})
    assert "Traceback" not in ended.output
    if world.command.trains and world.target.exists():  # a checkpoint to go on from
        assert world.run(resume=True).code in PASSED
        assert files_in(world.place) == world.new
    else:
        assert ended.code == (130 if number == signal.SIGINT else 143), ended.output
        assert files_in(world.place) == before


def test_a_source_that_changes_during_the_run_is_noticed(world):
    if not world.command.reads:
        pytest.skip("it reads code alone")
    row = world.change()
    assert (row.code, row.problems) == (FAILED, ())


def test_a_small_disk_leaves_one_line_and_nothing_else(world):
    needed = world.bytes_needed()
    world.prepare(force=False)
    for size in (8192, needed // 3, needed - 4096):
        with mounted(world.place, f"size={size}") as done:
            if not done:
                pytest.skip("no file system may be mounted here")
            row = world.fail(relief=lambda: remount(world.place, "size=64m"))
        assert row.problems == ()


def test_a_read_only_disk_is_refused_in_one_line(world):
    world.prepare(force=False)
    with mounted(world.place, "size=64m") as done:
        if not done:
            pytest.skip("no file system may be mounted here")
        row = world.refused_read_only(lambda how: remount(world.place, how))
    assert (row.code, row.problems) == (FAILED, ())


def test_another_disk_gives_the_same_bytes(world):
    world.prepare(force=False)
    with mounted(world.place, "size=64m") as done:
        if not done:
            pytest.skip("no file system may be mounted here")
        assert world.fail()[-3:] == ("new", world.straight.code, ())


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
