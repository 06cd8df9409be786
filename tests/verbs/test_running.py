"""What is prepared before a verb loads a framework."""

from __future__ import annotations

import os

import pytest

from weighbridge.verbs.running import prepare_mlx


@pytest.mark.parametrize(
    ("chosen", "training", "wanted"),
    [(None, False, "PASSIVE"), (None, True, None), ("ACTIVE", False, "ACTIVE")],
)
def test_threads_that_wait_sleep_while_a_check_reads(monkeypatch, chosen, training, wanted):
    monkeypatch.setenv("OMP_WAIT_POLICY", chosen or "")
    if chosen is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    prepare_mlx(training=training)
    assert os.environ.get("OMP_WAIT_POLICY") == wanted
