"""``kill -9`` at any moment: the target is nothing, the old or the new; the same command ends well.

A few moments of each command here; ``benchmarks/faults/run.py`` takes every one.
"""

from __future__ import annotations

from weighbridge.tests.faults.shim import Action, Fault, Kind
from weighbridge.tests.faults.worlds import moments


def test_a_killed_command_leaves_all_or_nothing_and_its_rerun_the_same_bytes(world):
    rows = []
    for force in (False,) if world.command.trains else (False, True):
        calls = world.calls(force=force)
        faults = [Fault(n) for n in moments(calls, 3)]
        faults += [Fault(n, Action.TORN) for n in moments(calls, 1, Kind.WRITE)]
        rows += [world.kill(fault, force=force) for fault in faults]
    assert [row for row in rows if row.problems] == []
    assert {row.code for row in rows} == {-9}
