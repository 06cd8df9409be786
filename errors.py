"""The errors Weighbridge raises on purpose; everything else is a bug."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

SHOWN: Final = 50  # problems printed; a checkpoint can have tens of thousands


class WeighbridgeError(Exception):
    """Base of every expected failure; the command line prints it as one line, without a traceback.

    A message says what is wrong, where, and what to do next.
    """


class BadInputError(WeighbridgeError):
    """A file or directory cannot be what it claims to be."""


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
        more = [f"and {len(problems) - SHOWN:,} more"] if len(problems) > SHOWN else []
        super().__init__("\n  ".join([f"{summary}: {count}", *problems[:SHOWN], *more]))


class UnsupportedError(WeighbridgeError):
    """An operation that Weighbridge refuses by name rather than doing it wrong."""


class UntrustedError(WeighbridgeError):
    """A model asks to run code and nobody consented."""


class TargetExistsError(WeighbridgeError):
    """The target is already there and ``--force`` was not given."""
