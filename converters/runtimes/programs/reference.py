"""Run an ML program with our own evaluator, on any operating system.

What it computes is what the program says, not what Apple's runtime would compute: fusions,
accumulation in float16 and denormals differ on a device. A verdict says so (PASS-REFERENCE).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from ....errors import BadInputError
from ...captures.mlprogram import load_program
from ...captures.mlprogram.names import inward, names_of, renamed, turned
from ...captures.mlprogram.signatures import read_signature
from ...captures.mlprogram.texts import each_row, run_program, stacked
from ...common.policy import Policy
from ...values import Array
from ..base import Arrays, Trace, widened

if TYPE_CHECKING:
    from ...captures.mlprogram.watching import Grids, Watched
    from ...models import Model


def key_of(inputs: Arrays) -> int:
    """Return a number that stands for INPUTS, as they are."""
    return hash(tuple((name, array.shape, array.tobytes()) for name, array in inputs.items()))


class ReferenceRunner:
    """An ML program in the evaluator; see ``converters.runtimes.base.Runner``.

    It computes as the program declares: of a float16 program every result is rounded to float16.

    Attributes:
        signature: what the package takes and gives.
        program: the program that runs.
        precision: ``declared``, or ``float32`` where no activation is rounded.
        watched: what was not finite inside, row by row of a text, by the inputs of the run.
        cache: where a text is kept between calls; empty where nothing is.
        kind: ``captured`` where the package says which operation ends which submodule, ``graph`` where not.
    """

    runtime = "reference"

    def __init__(self, model: Model, policy: Policy) -> None:
        if model.path is None:
            raise BadInputError(f"{model.spec} is no package; export it first")
        self.policy = policy
        self.signature = read_signature(model.path)
        self.program = load_program(model.path)
        manifest = self.program.manifest
        self.text, self.names = self.program.text, names_of(manifest)
        self.cache = "states" if self.text else ""
        self.kind = "captured" if manifest.get("sites") else "graph"
        self.precision = "declared"
        self.watched: dict[int, list[Watched]] = {}

    def shadow(self, exact: Arrays | None = None) -> ReferenceRunner:
        """Return the same program without rounding of activations, which shows its structure.

        EXACT are constants as they were before they were rounded.
        """
        other = copy(self)
        other.precision, other.watched = "float32", {}
        other.program = self.program.with_constants(exact or {})
        return other

    def unrounded(self) -> ReferenceRunner:
        """Return the same program whose activations are not rounded to codes."""
        other = copy(self)
        other.program, other.watched = self.program.unrounded(), {}
        return other

    def watch_grids(self, inputs: Arrays, grids: Grids) -> dict[str, Array]:
        """Return the outputs without rounding to codes, and show GRIDS what would be rounded."""
        how = {"precision": self.precision, "observe": grids}
        given = self.inward(inputs)
        return self.outward(run_program(self.program.unrounded(), self.text, given, lambda: how))

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """Return the outputs by name, floats as float32."""
        from ...captures.mlprogram.watching import Watch

        watches = self.watched[key_of(inputs)] = []

        def watched() -> dict[str, Any]:
            watch = Watch(wide=self.precision == "float32")
            watches.append(watch.found)
            return {"precision": self.precision, "observe": watch}

        return self.outward(run_program(self.program, self.text, self.inward(inputs), watched))

    def run_in_pieces(self, inputs: Arrays, sizes: Sequence[int]) -> dict[str, Array]:
        """Return the outputs of each token, read so many at a time as SIZES says, kept in states."""
        how = {"precision": self.precision}
        given = self.inward(inputs)
        return self.outward(run_program(self.program, self.text, given, lambda: how, sizes))

    def inward(self, inputs: Arrays) -> dict[str, Array]:
        """Return INPUTS as the package takes them."""
        return inward(self.program.manifest, inputs)

    def outward(self, outputs: Arrays) -> dict[str, Array]:
        """Return OUTPUTS under the names of the model, floats as float32."""
        return widened(renamed(outputs, turned(self.names)))

    def trace(self, inputs: Arrays, corrections: Arrays | None = None) -> Trace:
        """Run and record every site.

        Sites are submodules where the package says which operation ends which (our exports do);
        otherwise they are operations, named by their output.
        """
        given, own = corrections or {}, self.inward(inputs)
        rows = each_row(self.text, own, given) if self.text else [(own, given)]
        sites: dict[str, Sequence[str]] | None = self.program.manifest.get("sites")
        ran = [self.program.trace(row, self.precision, theirs, sites) for row, theirs in rows]
        outputs, found = ran[0] if len(ran) == 1 else map(stacked, zip(*ran, strict=True))
        return Trace(self.outward(outputs), widened(found))

    def describe(self) -> dict[str, str]:
        """Return runtime, version, device, dtype and accumulation, for the verdict."""
        import torch

        declared = self.program.compute
        return {
            "runtime": self.runtime,
            "version": f"on torch {torch.__version__.split('+')[0]}",
            "device": self.policy.device,
            "dtype": "float32" if self.precision == "float32" else declared,
            "accumulate": "float32",
            "blas": "mkl" if torch.backends.mkl.is_available() else "other",  # type: ignore[no-untyped-call]
            "function": self.program.function,
        }
