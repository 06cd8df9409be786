"""Disks that are full, forbid or fail: one line, exit 3, nothing left, nothing lost."""

from __future__ import annotations

import errno
import signal

import pytest

from weighbridge.tests.faults.mounts import mounted, remount
from weighbridge.tests.faults.shim import ANY, FAILING, GROWING, Action, Fault, Kind
from weighbridge.tests.faults.worlds import FAILED, PASSED, files_in, moments

FULL = Fault(0, Action.FAIL, errno.ENOSPC, GROWING, sticky=True)
SICK = Fault(0, Action.FAIL, errno.EIO, FAILING)
TORN = Fault(0, Action.HALF, errno.ENOSPC, Kind.WRITE, sticky=True)
QUOTA = Fault(0, Action.FAIL, errno.EDQUOT, Kind.WRITE | Kind.CLOSE, sticky=True)
TAKEN = [Fault(0, Action.SHORT), Fault(0, Action.FAIL, errno.EINTR, Kind.WRITE)]


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
