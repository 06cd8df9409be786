"""The errors Weighbridge raises on purpose; everything else is a bug.

Messages quote files and arguments of any size and content, so they are made fit for a terminal here:
at most ``LONGEST`` characters, nothing in them that would move the cursor or end a line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

LONGEST: Final = 1_990  # characters of a message: with "Error: " before it, under 2,000
SUMMARY, DETAIL = 800, 400  # characters of either, in a message of several lines
SHOWN: Final = 50  # problems printed; a checkpoint can have tens of thousands
OMITTED: Final = " ... "
_LINE_END: Final = re.compile(r"\s*[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]\s*")


class WeighbridgeError(Exception):
    """Base of every expected failure; the command line prints it as one line, without a traceback.

    A message says what is wrong, where, and what to do next. DETAILS are lines of their own below it.
    """

    def __init__(self, message: str = "", details: Sequence[str] = ()) -> None:
        super().__init__(listed(message, details))


class BadInputError(WeighbridgeError):
    """A file or directory cannot be what it claims to be."""


class UsersCodeError(BadInputError):
    """Code that a user named has failed; the message has the last of its own lines, ``FILE:LINE``."""


class MapSyntaxError(WeighbridgeError):
    """A ``.wmap`` text cannot be parsed; the message starts with ``FILE:LINE:COLUMN``."""


class MismatchError(WeighbridgeError):
    """Two sides do not fit together; carries every problem of the job, not only the first.

    >>> print(MismatchError("adapter A does not fit base B", ["x.lora_b is missing", "y is unexpected"]))
    adapter A does not fit base B: 2 problems
      x.lora_b is missing
      y is unexpected
    """

    def __init__(self, summary: str, problems: Sequence[str]) -> None:
        self.summary, self.problems = summary, tuple(problems)
        count = f"{len(problems)} problem{'s' * (len(problems) != 1)}"
        super().__init__(f"{legible(summary, SUMMARY)}: {count}", problems)

    def __reduce__(self) -> tuple[type[MismatchError], tuple[str, tuple[str, ...]]]:
        """Return what makes it again: a child process hands its errors to its parent."""
        return type(self), (self.summary, self.problems)


class UnsupportedError(WeighbridgeError):
    """An operation that Weighbridge refuses by name rather than doing it wrong."""


class RuntimeEndedError(UnsupportedError):
    """A runtime ended its own process on what it was given; ours goes on to say so."""


class TooLittleMemoryError(WeighbridgeError):
    """A job needs more memory than there can be, or memory ran out under way."""


class UntrustedError(WeighbridgeError):
    """A model asks to run code and nobody consented."""


class TargetExistsError(WeighbridgeError):
    """The target is already there and ``--force`` was not given."""


class DivergedError(WeighbridgeError):
    """The loss or the gradient of a training run was not finite too many times in a row."""


class StoppedElsewhereError(WeighbridgeError):
    """Another process of a training run has stopped and says itself why; this one prints nothing."""


class Terminated(KeyboardInterrupt):
    """The command was told to end by SIGTERM or SIGHUP; it unwinds as on Ctrl-C."""


def legible(text: str, most: int = LONGEST) -> str:
    r"""Return TEXT as one line of at most MOST characters, none of them invisible.

    >>> legible("two\n  lines"), legible("\x1b[31mred"), legible("1234567890", 9)
    ('two; lines', '\\x1b[31mred', '12 ... 90')
    """
    line = _LINE_END.sub("; ", shortened(text, 2 * most))
    if not line.isprintable():
        line = "".join(it if it.isprintable() else ascii(it)[1:-1] for it in line)
    return shortened(line, most)


def shortened(text: str, most: int) -> str:
    """Return TEXT, its middle left out if it has more than MOST characters."""
    if len(text) <= most:
        return text
    half = (most - len(OMITTED)) // 2
    return f"{text[:half]}{OMITTED}{text[-half:]}"


def listed(message: str, details: Sequence[str]) -> str:
    """Return MESSAGE with DETAILS below it, as many of them as there is room for."""
    lines = [legible(message, SUMMARY + 40 if details else LONGEST)]
    room = LONGEST - len(lines[0]) - len("\n  and 000,000,000 more")
    for number, detail in enumerate(details):
        line = legible(detail, DETAIL)
        room -= len("\n  ") + len(line)
        if room < 0 or number == SHOWN:
            lines.append(f"and {len(details) - number:,} more")
            break
        lines.append(line)
    return "\n  ".join(lines)
