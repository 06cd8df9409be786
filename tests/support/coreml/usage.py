"""Lines that ``inspect`` prints of a package, run where there is no Core ML: by our own evaluator."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

from weighbridge.converters.captures.mlprogram import load_program
from weighbridge.converters.captures.mlprogram.toolkit import coremltools


class Evaluated:
    """What takes the place of coremltools' MLModel: inputs of other names or sizes are refused."""

    def __init__(self, path: str) -> None:
        self.program = load_program(Path(path))

    def make_state(self) -> Any:
        """Return the states at their beginning."""
        return self.program.new_state()

    def predict(self, inputs: Mapping[str, Any], state: Any = None) -> dict[str, Any]:
        """Return what the program makes of INPUTS; a program with states needs its STATE."""
        assert bool(state) == bool(self.program.new_state())
        return self.program.run(inputs, state=state)


def run_lines(facts: Mapping[str, Any]) -> None:
    """Run the lines among FACTS, as ``inspect --json`` prints them."""
    with patch.object(coremltools.models, "MLModel", Evaluated):
        exec("\n".join(facts["run it in Python"]), {})
