"""A reader of results that has gone, as behind ``| head``, and a full disk: what is done stays done."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from weighbridge.converters.common.exits import Exit

BERT = Path(__file__).parents[2] / "fixtures" / "bert"


@contextmanager
def nobody_reads():
    """Give the end of a pipe whose other end is closed."""
    there, here = os.pipe()
    os.close(there)
    yield here
    os.close(here)


def into_nothing(*words: object) -> tuple[int, str]:
    """Run WORDS with standard output that nobody reads; return exit code and standard error."""
    command = [sys.executable, "-m", "weighbridge", *map(str, words)]
    with nobody_reads() as pipe:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stderr


def test_what_was_done_is_told_by_the_exit_code_where_nobody_reads(tmp_path):
    code, said = into_nothing(
        *("convert", "torch-to-mlx", BERT / "model", tmp_path / "out", "--check", "none")
    )
    assert (code, "Traceback" in said) == (Exit.DONE, False)
    assert (tmp_path / "out" / "config.json").is_file()


@pytest.mark.parametrize(
    "options", [(), pytest.param(("--json",), marks=pytest.mark.heavy)], ids=["panel", "json"]
)
def test_a_verdict_that_nobody_reads_does_not_say_that_it_differs(options):
    words = ("parity", "check", BERT / "model", BERT / "model", "--quick", *options)
    assert into_nothing(*words)[0] == Exit.DONE


def test_an_error_that_nobody_reads_has_its_own_code(tmp_path):
    code, said = into_nothing("inspect", tmp_path / "nowhere", "--json")
    assert (code, said) == (Exit.FAILED, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no such device on this system")
def test_a_full_disk_is_told_by_what_is_full():
    command = [sys.executable, "-m", "weighbridge", "inspect", str(BERT / "model")]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == Exit.FAILED
    assert done.stderr.startswith("Error: standard output: No space left on device")
