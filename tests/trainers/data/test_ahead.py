"""Things made ahead: in order, the same for any number of threads, without what hangs or is lost."""

from __future__ import annotations

import threading
import time

import pytest

from weighbridge.trainers.data.ahead import Ahead

WAYS = [(0, 0), (0, 3), (1, 0), (1, 1), (1, 4), (3, 2), (4, 9)]


def square(position):
    time.sleep(0.001 * (position % 3))  # later ones may be ready first
    return position**2


def threads():
    return {thread for thread in threading.enumerate() if thread.name.startswith("data")}


@pytest.mark.parametrize(("workers", "depth"), WAYS)
def test_the_same_things_come_in_the_same_order(workers, depth):
    with Ahead(square, workers, depth) as ahead:
        assert [ahead.get(position) for position in range(20)] == [it**2 for it in range(20)]


def test_positions_may_jump():
    with Ahead(square, 2, 3) as ahead:
        assert [ahead.get(position) for position in (7, 0, 1, 30, 2)] == [49, 0, 1, 900, 4]


@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_position_raises_comes_out_there(workers):
    def third(position):
        if position == 3:
            raise ValueError("no third")
        return position

    with Ahead(third, workers, 4) as ahead:
        assert [ahead.get(position) for position in range(3)] == [0, 1, 2]
        with pytest.raises(ValueError, match="no third"):
            ahead.get(3)
        assert ahead.get(4) == 4


def test_no_more_is_made_than_the_depth_allows():
    made = []
    with Ahead(made.append, 1, 2) as ahead:
        ahead.get(0)
    assert set(made) <= {0, 1, 2}
    assert made == sorted(made)


@pytest.mark.parametrize("raised", [None, KeyboardInterrupt])
def test_no_thread_stays_behind(raised):
    before = threads()
    released = threading.Event()

    def slow(position):
        if position:
            released.wait(5)
        return position

    def interrupted():
        with Ahead(slow, 2, 5) as ahead:
            ahead.get(0)
            assert threads() > before
            released.set()
            if raised:
                raise raised

    if raised:
        with pytest.raises(raised):
            interrupted()
    else:
        interrupted()
    assert threads() == before


@pytest.mark.parametrize("workers", [0, 1])
def test_waiting_is_counted(workers):
    with Ahead(lambda position: time.sleep(0.02), workers, 1) as ahead:
        ahead.get(0)
        assert ahead.waited >= 0.02
