"""Phases add up to an update that is timed apart from them, also where other work slows some turns down."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.trainers.bench.phases import SIDES, in_turns, taken_apart

COST = {"forward": 2.0, "backward": 5.0, "update": 6.0, "whole": 6.0}  # each is a part of the next
WITH_SIDES = {"query": 0.5, "document": 1.0} | COST
POSITIVE = st.floats(0.01, 100.0)


class Machine:
    """A clock that work moves on, slower in some turns than in others."""

    def __init__(self, loads, works):
        self.now, self._loads, self._calls, self._works = 0.0, loads, 0, len(works)

    def work(self, cost):
        def do():
            self.now += cost * self._loads[self._calls // self._works]
            self._calls += 1

        return do


@given(st.lists(POSITIVE, min_size=3, max_size=9), st.sampled_from([COST, WITH_SIDES]))
def test_a_busy_machine_changes_no_share_of_a_phase(loads, costs):
    machine = Machine(loads, costs)
    works = {name: machine.work(cost) for name, cost in costs.items()}
    found = taken_apart(in_turns(works, len(loads) - 1, lambda: machine.now))
    assert found.percent == pytest.approx(100)
    total = sum(found.milliseconds.values())
    shares = [took / total for took in found.milliseconds.values()]
    before = [0.5, 1.0, 0.5] if "query" in costs else [2.0]
    assert shares == pytest.approx([it / 6 for it in (*before, 3.0, 1.0)], abs=1e-3)


@given(st.fixed_dictionaries(dict.fromkeys((*SIDES, *COST), POSITIVE)))
def test_phases_are_never_negative_and_add_up_to_what_is_said(shares):
    found = taken_apart({name: [own] for name, own in shares.items()})
    assert min(found.milliseconds.values()) >= 0
    total = sum(found.milliseconds.values()) / (1000 * shares["whole"])
    assert found.percent == pytest.approx(100 * total, rel=1e-3, abs=0.06)


def test_the_first_turn_is_not_counted():
    machine = Machine([1000.0, 1.0, 1.0], COST)
    works = {name: machine.work(cost) for name, cost in COST.items()}
    assert in_turns(works, 2, lambda: machine.now)["whole"] == pytest.approx([6.0, 6.0])
