"""What the operating system refuses is one line with its path and what to do; faults stay faults."""

from __future__ import annotations

import errno
import os

import click
import pytest
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.converters.common.os_errors import ADVICE, OF_PATHS, explained

EXTRA = {errno.ENOSYS, errno.ENOEXEC}  # in no table: a path is enough


@pytest.fixture
def verb(monkeypatch):
    """Return a runner of a verb that raises what it is given."""

    def run(error):
        @click.command()
        def fails():
            raise error

        monkeypatch.setitem(main.commands, "fails", fails)
        return CliRunner().invoke(main, ["fails"])

    return run


@pytest.mark.parametrize("code", sorted({*ADVICE, *OF_PATHS, *EXTRA}), ids=errno.errorcode.get)
def test_an_error_that_names_a_file_is_one_line(verb, code):
    result = verb(OSError(code, os.strerror(code), "some/file"))
    assert result.exit_code == 3
    assert result.output.startswith(f"Error: some/file: {os.strerror(code)}; ")
    assert result.output.count("\n") == 1


@pytest.mark.parametrize("code", sorted(ADVICE), ids=errno.errorcode.get)
def test_an_answer_of_the_machine_needs_no_file(verb, code):
    result = verb(OSError(code, os.strerror(code)))
    assert (result.exit_code, result.output.count("\n")) == (3, 1)


@pytest.mark.parametrize(
    "error",
    [
        OSError("no number"),
        OSError(errno.EBADF, "Bad file descriptor"),
        FileNotFoundError(errno.ENOENT, "No such file"),
        ChildProcessError(errno.ECHILD, "No child processes"),
        ModuleNotFoundError("No module named 'a'", name="a"),
    ],
)
def test_a_fault_of_ours_is_a_bug(verb, error):
    result = verb(error)
    assert result.exit_code == 70
    assert "Traceback" in result.output


def test_a_closed_pipe_is_the_end_and_no_error(verb):
    result = verb(BrokenPipeError(errno.EPIPE, "Broken pipe"))
    assert (result.exit_code, result.output) == (1, "")


def test_the_place_of_work_stands_for_the_file_inside_it():
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), ".x.staging/part")
    assert explained(error, "x") == (
        "x: No space left on device; free some space or choose another disk"
    )


def test_a_path_in_bytes_is_a_path():
    assert explained(OSError(errno.EIO, "Input/output error", b"caf\xc3\xa9")).startswith("café: ")
