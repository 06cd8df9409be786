"""Memory that was freed: kept for the next arrays of a training, and given back where it is measured."""

from __future__ import annotations

import platform
import resource
import sys

import numpy as np
import psutil
import pytest

from weighbridge.trainers.memory.freed import give_back, kept
from weighbridge.trainers.runs.loop import computing
from weighbridge.trainers.runs.sizes import memory_used

GLIBC = sys.platform == "linux" and platform.libc_ver()[0] == "glibc"
pytestmark = pytest.mark.skipif(not GLIBC, reason="the C library is not glibc")
MEGABYTE = 1 << 20


def resident():
    return psutil.Process().memory_info().rss


def use_and_free(count=24, megabytes=4):
    """Hold so many arrays at once, and free them."""
    arrays = [np.ones(megabytes * MEGABYTE, np.uint8) for _ in range(count)]
    assert sum(int(array[-1]) for array in arrays) == count


def faults(work):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    work()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.parametrize("keep", [True, False])
def test_what_a_training_frees_is_there_for_its_next_arrays(series_config, keep):
    with computing("torch", series_config(keep_freed=keep)):
        use_and_free()
        found = faults(use_and_free)
    assert (found < 1000) == keep  # of 24,576 pages


def test_all_goes_back_behind_a_training():
    give_back()
    before = resident()
    with kept():
        use_and_free()
        assert resident() > before + 80 * MEGABYTE
    assert resident() < before + 40 * MEGABYTE


def test_memory_in_use_does_not_count_what_is_kept():
    give_back()
    with kept():
        before = memory_used(1000)
        use_and_free()
        assert memory_used(1000) < before + 0.04
