"""No malformed input brings a traceback, a hang, a wrong success or a write outside the target."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.families import FAMILIES
from tests.fuzz.replay import kept

ROOT = Path(__file__).parent.parent.parent
SLICE = 150  # inputs; ``make fuzz`` runs 10,000


def in_a_process_of_its_own(*argv: str) -> subprocess.CompletedProcess[str]:
    """Run this module there: a fork of a process with threads could hang."""
    path = os.pathsep.join((str(ROOT), *sys.path))
    return subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *argv],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_there_are_at_least_sixteen_families():
    assert len(FAMILIES) >= 16


def test_a_slice_of_the_fuzzer_finds_nothing():
    done = in_a_process_of_its_own("slice", str(SLICE))
    found = [row for line in done.stdout.splitlines() if (row := json.loads(line)).get("found")]
    assert (found, done.returncode) == ([], 0), done.stderr[-3_000:]
    assert len(done.stdout.splitlines()) == SLICE


def test_no_case_that_was_found_once_is_found_again():
    done = in_a_process_of_its_own("replay")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert ([row for row in rows if row["found"]], done.returncode) == ([], 0), done.stderr[-3_000:]
    assert {row["case"] for row in rows} == set(kept())


def test_every_kind_of_fault_is_found_where_it_is_planted():
    done = in_a_process_of_its_own("controls")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert rows, done.stderr[-3_000:]
    assert {row["planted"]: row["found"] for row in rows} == {
        row["planted"]: row["wanted"] for row in rows
    }


@pytest.mark.parametrize("name", list(kept()))
def test_a_case_says_what_was_wrong(name):
    case = kept()[name]
    assert case["family"] in FAMILIES
    assert case["argv"]
    assert case["found"]
