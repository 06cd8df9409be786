"""What operations of a package read, rounded to 8 bits by coremltools, in ranges that our evaluator measures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final
from unittest.mock import patch

import numpy as np
from torch import Tensor, as_tensor

from ...errors import UnsupportedError
from ..captures.mlprogram.evaluator import dtype_name
from ..captures.mlprogram.names import inward
from ..captures.mlprogram.program import Program
from ..captures.mlprogram.texts import HIDDEN, run_program
from ..captures.mlprogram.variables import every_operation
from ..values import Array

KINDS: Final = frozenset(("add", "avg_pool", "conv", "linear", "max_pool"))  # what coremltools does
READS: Final = ("x", "y")
# Of the mean size of what is rounded: normal numbers, four deviations wide, lose 0.011.
LOSES: Final = 0.1
Inputs = Sequence[Mapping[str, Array]]


class Ranges:
    """Observes runs of a program: the smallest and largest number of every variable, and their size, by name."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[float, float]] = {}
        self._sums: dict[str, tuple[float, int]] = {}

    def lost(self, name: str) -> float:
        """Return what rounding variable NAME to 8 bits in its range loses, of the mean size of its numbers.

        A mean of sizes, not of squares: one number that is 300 times as large as the others says nothing of them.
        """
        low, high = self.found.get(name, (0.0, 0.0))
        total, count = self._sums.get(name, (0.0, 0))
        return max(-low, high) / 127 / math.sqrt(12) / (total / count) if total else 0.0

    def __call__(self, _: Any, variable: Any, value: Tensor) -> None:
        """Look at the VALUE of VARIABLE."""
        self.see(variable.name, value)

    def see(self, name: str, value: Tensor) -> None:
        """Look at the VALUE of the variable called NAME."""
        if value.numel():
            low, high = float(value.min()), float(value.max())
            least, most = self.found.get(name, (low, high))
            self.found[name] = min(low, least), max(high, most)
            total, count = self._sums.get(name, (0.0, 0))
            sizes = float(value.double().abs().sum())
            self._sums[name] = total + sizes, count + value.numel()


def ranges_of(program: Program, inputs: Inputs) -> Ranges:
    """Return the ranges of every variable of PROGRAM on INPUTS, its own inputs among them."""
    ranges = Ranges()
    for given in inputs:
        own = inward(program.manifest, given)
        run_program(program, program.text, own, lambda: {"observe": ranges})
        for name, array in own.items():
            ranges.see(name, as_tensor(np.asarray(array)))
    return ranges


def kept_apart(program: Program, calibrated: Ranges, trial: Ranges) -> set[str]:
    """Return the operations of PROGRAM whose activations stay as they are.

    Those that do not compute in its narrowest dtype; where a mask is added, whose lowest number would make the
    steps larger than all scores; and where a few numbers are so large that steps lose most of the others, as in the
    residual sums of BERT (Bondarenko et al. 2021, Understanding and Overcoming the Challenges of Efficient
    Transformer Quantization).
    """
    ranges = {**calibrated.found, **trial.found}
    narrow = "fp16" if program.compute == "float16" else "fp32"
    found = set()
    for operation in every_operation(program.body):
        read = [v for name in READS if (v := operation.inputs.get(name)) is not None]
        live = [*(v for v in read if v.op is None or v.op.op_type != "const"), *operation.outputs]
        reach = (max(map(abs, ranges.get(it.name, (np.inf, np.inf)))) for it in live)
        wide = any(dtype_name(it) != narrow for it in read)
        rough = max((calibrated.lost(it.name) for it in live), default=0.0) > LOSES
        if operation.op_type in KINDS and (wide or rough or max(reach) >= -HIDDEN):
            found.add(operation.name)
    return found


def with_codes(
    model: Any, compression: Any, program: Program, calibrate: Inputs, trial: Inputs
) -> Any:
    """Return coremltools' MODEL with activations in int8, symmetric about zero, by its module COMPRESSION.

    Args:
        model: to change.
        compression: ``coremltools.optimize.coreml``.
        program: the same, which runs here.
        calibrate: inputs on which activations have the ranges that are to be held.
        trial: more inputs, which show where masks are.

    Raises:
        UnsupportedError: there are no inputs.
    """
    if not calibrate:
        raise UnsupportedError("no inputs can be made for this model: name some in --calibrate")
    from coremltools.optimize.coreml.experimental._model_debugger import ModelDebugger

    ranges = ranges_of(program, calibrate)
    apart = kept_apart(program, ranges, ranges_of(program, trial))
    known = {name: {"rmin": low, "rmax": high} for name, (low, high) in ranges.found.items()}

    # Its only call of `predict`, which needs macOS. What it measures itself is of the last sample alone (9.0).
    def step(_: Any, inputs: Any, activation_stats_dict: dict[str, Any], **__: Any) -> None:
        del inputs
        activation_stats_dict.update(known)

    grid = compression.OpLinearQuantizerConfig(mode="linear_symmetric", dtype="int8")
    config = compression.OptimizationConfig(grid, op_name_configs=dict.fromkeys(apart))
    with patch.object(ModelDebugger, "step", step):
        return compression.linear_quantize_activations(model, config, [dict(calibrate[0])])
