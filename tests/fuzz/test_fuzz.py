"""No malformed input brings a traceback, a hang, a wrong success or a write outside the target."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.campaign import target_of
from tests.fuzz.families import FAMILIES
from tests.fuzz.replay import kept

ROOT = Path(__file__).parent.parent.parent
SLICE = 36  # inputs, one of each family and more; ``make fuzz`` runs 10,000


@pytest.fixture(scope="module")
def report():
    """Return what was found in a process of its own: a fork of one with threads could hang."""
    path = os.pathsep.join((str(ROOT), *sys.path))
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", str(SLICE)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    return json.loads(done.stdout)


def test_there_are_at_least_sixteen_families():
    assert len(FAMILIES) >= 16


def test_a_slice_of_the_fuzzer_finds_nothing(report):
    assert [row for row in report["slice"] if row.get("found") or "broken" in row] == []
    assert len(report["slice"]) == SLICE


def test_no_case_that_was_found_once_is_found_again(report):
    assert [row for row in report["cases"] if row["found"]] == []
    assert {row["case"] for row in report["cases"]} == set(kept())


def test_every_kind_of_fault_is_found_where_it_is_planted(report):
    found = {row["planted"]: row["found"] for row in report["planted"]}
    assert found == {row["planted"]: row["wanted"] for row in report["planted"]}


@pytest.mark.parametrize("name", list(kept()))
def test_a_case_says_what_was_wrong(name):
    case = kept()[name]
    assert case["family"] in FAMILIES
    assert case["argv"]
    assert case["found"]


@pytest.mark.parametrize(
    ("line", "target"),
    {
        "train --recipe a": "run-2",
        "train --recipe a --resume": "run",
        "train new --recipe a": "new",
        "train out --recipe a": "out",
        "inspect new": "",
    }.items(),
)
def test_the_fuzzer_knows_what_a_random_command_line_may_write(line, target, tmp_path):
    for name in ("run", "a"):
        (tmp_path / name).mkdir()
    assert target_of(line.split(), tmp_path) == target
