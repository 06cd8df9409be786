"""A program whose inputs and outputs are called otherwise than the model's, run under the model's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, cast

from ...captures.mlprogram.names import renamed, turned
from ...values import Array
from ..base import Arrays, Runner, Trace


class Renamed:
    """A runner under other names; what it can do and says of itself is what the runner inside does.

    NAMES are the model's name -> the program's, where these differ.
    """

    def __init__(self, runner: Runner, names: Mapping[str, str]) -> None:
        self.runner, self.names = runner, names

    def __getattr__(self, name: str) -> Any:
        """Return the attribute NAME of the runner; what takes or gives arrays does so under the model's names."""
        found = getattr(self.runner, name)
        return partial(NAMING[name], self, found) if name in NAMING else found

    def around(self, runner: Runner) -> Runner:
        """Return RUNNER of the same program, under the same names."""
        return under_names(runner, self.names)

    def inward(self, inputs: Arrays) -> dict[str, Array]:
        """Return INPUTS under the program's names."""
        return renamed(inputs, self.names)

    def outward(self, outputs: Arrays) -> dict[str, Array]:
        """Return OUTPUTS under the model's names."""
        return renamed(outputs, turned(self.names))


def under_names(runner: Runner, names: Mapping[str, str]) -> Runner:
    """Return RUNNER of a program, under the model's NAMES where it has others."""
    return cast("Runner", Renamed(runner, names)) if names else runner


def _called(to: Renamed, call: Callable[..., Arrays], inputs: Arrays, *rest: Any) -> Arrays:
    return to.outward(call(to.inward(inputs), *rest))


def _traced(to: Renamed, call: Callable[..., Trace], inputs: Arrays, *rest: Any) -> Trace:
    found = call(to.inward(inputs), *rest)
    return replace(found, outputs=to.outward(found.outputs))


def _limited(to: Renamed, call: Callable[[Arrays], Any], inputs: Arrays) -> Any:
    found = call(to.inward(inputs))
    return found and found._replace(outputs=to.outward(found.outputs))


def _shadow(to: Renamed, call: Callable[..., Runner], *rest: Any) -> Runner:
    return to.around(call(*rest))


def _asked(to: Renamed, call: Callable[..., Any], inputs: Arrays, *rest: Any) -> Any:
    return call(to.inward(inputs), *rest)


NAMING: Final[Mapping[str, Callable[..., Any]]] = {
    "run": _called,
    "run_in_pieces": _called,
    "kept_in_pieces": _asked,
    "trace": _traced,
    "limited": _limited,
    "shadow": _shadow,
    "unrounded": _shadow,
    "watch_grids": _called,
}
