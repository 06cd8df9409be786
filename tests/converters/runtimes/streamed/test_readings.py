"""Pieces of weights are read once for all runs that need them, and are forgotten."""

from __future__ import annotations

import threading

import pytest

from weighbridge.converters.runtimes.streamed.readings import Readings


def reader(seen, name, size=1):
    return lambda: (seen.append(name) or name, size)


def test_runs_that_need_the_same_pieces_read_each_once():
    readings, seen = Readings(total=99, kept=1), []

    def run():
        return [readings.get((number,), reader(seen, number)) for number in range(20)]

    assert readings.run([run] * 5) == [list(range(20))] * 5
    assert seen == list(range(20))


def test_runs_that_skip_pieces_wait_for_those_behind_them():
    readings, seen = Readings(total=99, kept=1), []

    def run(step):
        return lambda: [readings.get((n,), reader(seen, n)) for n in range(0, 12, step)]

    readings.run([run(step) for step in (1, 2, 3)])
    assert seen == list(range(12))


def test_no_more_is_kept_than_allowed():
    readings, seen = Readings(total=99, kept=3), []
    for number in (*range(4), 3, 0):
        readings.get((number,), reader(seen, number))
    assert seen == [0, 1, 2, 3, 0]


def test_a_run_that_fails_ends_the_others():
    readings = Readings(total=99, kept=9)

    def fails():
        readings.get((0,), reader([], 0))
        raise MemoryError("no more")

    def waits():
        for number in range(1000):
            readings.get((number,), reader([], number))

    with pytest.raises(MemoryError, match="no more"):
        readings.run([waits, fails, waits])
    assert readings.run([lambda: readings.get((0,), reader([], 0))]) == [0]


def test_runs_whose_pieces_can_all_be_kept_come_one_after_another():
    readings, seen, threads = Readings(total=4, kept=4), [], set()

    def run():
        threads.add(threading.get_ident())
        return [readings.get((number,), reader(seen, number)) for number in range(4)]

    assert readings.run([run] * 3) == [[*range(4)]] * 3
    assert (seen, threads) == ([*range(4)], {threading.get_ident()})
