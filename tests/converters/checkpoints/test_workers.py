"""Several threads do each task once, and end together."""

from __future__ import annotations

import threading
import time

import pytest

from weighbridge.converters.checkpoints.workers import Stopped, Workers


@pytest.mark.parametrize("count", [1, 2, 5])
def test_each_task_is_done_once(count):
    done = []
    Workers(count).each(range(100), done.append)
    assert sorted(done) == list(range(100))


def test_as_many_threads_work_at_once_as_there_are_workers():
    together = threading.Barrier(3, timeout=600)
    Workers(3).each(range(3), lambda _: together.wait())


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()])
@pytest.mark.parametrize("count", [1, 3])
def test_the_first_error_ends_the_work_of_all_and_is_raised(count, error):
    workers, begun = Workers(count), []

    def work(item):
        begun.append(item)
        if item == 3:
            raise error
        if item > 3:
            for _ in range(500):
                workers.check()
                time.sleep(0.01)

    with pytest.raises(type(error)) as caught:
        workers.each(range(1000), work)
    assert caught.value is error
    assert len(begun) < 10


def test_check_says_nothing_while_all_is_well():
    workers = Workers(2)
    workers.each(range(3), lambda _: workers.check())
    with pytest.raises(ZeroDivisionError):
        workers.each([0], lambda item: 1 / item)
    with pytest.raises(Stopped):
        workers.check()


def test_an_error_of_the_tasks_themselves_is_raised():
    def tasks():
        yield 1
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        Workers(2).each(tasks(), lambda _: None)
