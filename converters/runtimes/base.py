"""A model made runnable: arrays in, arrays out, with its inner sites on request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np

from ...errors import BadInputError
from ..common.steps import each, step
from ..values import Array

Arrays = Mapping[str, Array]
Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Trace:
    """One run with its inner sites.

    Attributes:
        outputs: the outputs by port name.
        sites: output of every site, by module path; where corrections were given, what the site
            computed from corrected inputs, before its own correction.
    """

    outputs: dict[str, Array]
    sites: dict[str, Array] = field(default_factory=dict)


class Runner(Protocol):
    """A loaded model. Sites are submodules, named by their path in the source framework."""

    runtime: str  # torch, mlx, coreml, reference ...

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """Return the outputs by port name."""
        ...

    def trace(self, inputs: Arrays, corrections: Arrays | None = None) -> Trace:
        """Run and record every site; replace each site's output by its correction if there is one.

        With the reference's recordings as corrections, every site computes from the reference's
        inputs, so a recorded difference is the site's own (teacher forcing). Children are corrected
        before their parent ends: a parent differs only by what its children did not compute.
        A correction of another shape than its site's does nothing.
        Runners that can also record ``SITE|in``, the first input that reaches a site, and correct it.
        """
        ...

    def describe(self) -> dict[str, str]:
        """Return runtime, version, device, dtype, BLAS and flags, for the verdict."""
        ...


def widened(arrays: Arrays) -> dict[str, Array]:
    """Return ARRAYS with float16 as float32, as Core ML's ``predict`` returns them.

    >>> widened({"y": np.ones(2, np.float16)})["y"].dtype
    dtype('float32')
    """
    return {
        name: array.astype(np.float32) if array.dtype == np.float16 else array
        for name, array in arrays.items()
    }


def run_all(runner: Runner, what: str, rows: Sequence[Arrays]) -> list[dict[str, Array]]:
    """Return the outputs of RUNNER for each of ROWS, together where it can; report WHAT is run."""
    together = getattr(runner, "run_all", None)
    if together is None or len(rows) == 1:
        return [runner.run(inputs) for inputs in each(what, rows)]
    step(f"{what}s 1 to {len(rows)} together")
    found: list[dict[str, Array]] = together(rows)
    return found


def require_outputs(
    who: str, found: Mapping[str, Any], names: tuple[str, ...], kind: type[Kind]
) -> dict[str, Kind]:
    """Return what WHO returned FOUND by name, if there is an array of KIND for each of NAMES.

    Raises:
        BadInputError: there is not.
    """
    wrong = [
        f"{name} ({'missing' if name not in found else type(found[name]).__name__})"
        for name in names
        if not isinstance(found.get(name), kind)
    ]
    if wrong:
        raise BadInputError(
            f"{who} does not return an array for every output of its signature: {', '.join(wrong)}"
        )
    return dict(found)
