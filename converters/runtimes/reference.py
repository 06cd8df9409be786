"""Run an ML program with our own evaluator, on any operating system.

What it computes is what the program says, not what Apple's runtime would compute: fusions,
accumulation in float16 and denormals differ on a device. A verdict says so (PASS-REFERENCE).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...errors import BadInputError
from ..captures.mlprogram import load_program
from ..policy import Policy
from ..values import Array
from .base import Arrays, Trace

if TYPE_CHECKING:
    from ..models import Model


def widened(arrays: Arrays) -> dict[str, Array]:
    """Return ARRAYS with float16 as float32, as Core ML's ``predict`` returns them.

    >>> widened({"y": np.ones(2, np.float16)})["y"].dtype
    dtype('float32')
    """
    return {
        name: array.astype(np.float32) if array.dtype == np.float16 else array
        for name, array in arrays.items()
    }


class ReferenceRunner:
    """An ML program in the evaluator; see ``converters.runtimes.base.Runner``.

    With ``policy.compute`` float32 no activation is rounded: of a float16 program this is a shadow
    that shows its structure. With float16 every result is rounded as the program declares.

    Attributes:
        program: the program that runs.
        precision: ``float32`` or ``declared``.
    """

    runtime = "reference"

    def __init__(self, model: Model, policy: Policy) -> None:
        if model.path is None:
            raise BadInputError(f"{model.spec} is no package; export it first")
        self.program = load_program(model.path)
        self.precision = "float32" if policy.compute == "float32" else "declared"

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """Return the outputs by name, floats as float32."""
        return widened(self.program.run(inputs, self.precision))

    def trace(self, inputs: Arrays, corrections: Arrays | None = None) -> Trace:
        """Run and record every site.

        Sites are submodules where the package says which operation ends which (our exports do);
        otherwise they are operations, named by their output.
        """
        sites: dict[str, Sequence[str]] | None = self.program.manifest.get("sites")
        outputs, found = self.program.trace(inputs, self.precision, corrections, sites)
        return Trace(widened(outputs), widened(found))

    def describe(self) -> dict[str, str]:
        """Return runtime, version, device and precision, for the verdict."""
        import torch

        return {
            "runtime": self.runtime,
            "version": f"torch {torch.__version__}",
            "device": "cpu",
            "dtype": str(self.program.manifest.get("compute", "as declared")),
            "precision": self.precision,
            "function": self.program.function,
        }
