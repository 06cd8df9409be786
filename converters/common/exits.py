"""What the command exits with: one table, which the code, the help and the documentation share."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """An exit code; ``short`` is its meaning in few words, ``means`` in one line of Markdown."""

    short: str
    means: str

    def __new__(cls, code: int, short: str, means: str) -> Exit:
        """Return the code as an int that knows what it means."""
        row = int.__new__(cls, code)
        row._value_, row.short, row.means = code, short, means
        return row

    DONE = (
        *(0, "done or PASS"),
        (
            "done; a check that was asked for says PASS or PASS-REFERENCE. With `--check none` none is"
            " asked for: the result says UNVERIFIED and the code is 0"
        ),
    )
    DIFFERENT = (
        *(1, "DIFFERS"),
        'the answer is "different": a check DIFFERS, `preflight` or `doctor` found a problem',
    )
    USAGE = 2, "wrong usage", "wrong usage: an unknown option, a missing argument"
    FAILED = (
        *(3, "could not run"),
        (
            "could not run: bad input, a full disk, a missing package; the message says what, where, and"
            " what to do next"
        ),
    )
    UNDECIDED = (
        *(4, "UNVERIFIED"),
        (
            "a check that was asked for did not decide: UNVERIFIED or PASS-PRECISION-ONLY"
            " (`--accept LEVEL` turns a level into 0)"
        ),
    )
    BUG = 70, "bug", "a bug in Weighbridge: the traceback on stderr is what a report needs"
    INTERRUPTED = 130, "interrupted", "interrupted by Ctrl-C; nothing is left behind"
    TERMINATED = 143, "terminated", "terminated by SIGTERM or SIGHUP; nothing is left behind"


def exit_line(*codes: Exit) -> str:
    """Return the line of a help text that lists CODES, all of them if none are given.

    >>> exit_line(Exit.DONE, Exit.DIFFERENT)
    'Exit codes: 0 done or PASS, 1 DIFFERS.'
    """
    return f"Exit codes: {', '.join(f'{code.value} {code.short}' for code in codes or Exit)}."
