"""What is not finite inside a program, seen while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .evaluator import dtype_name, variables_of
from .kernels.quantized import RANGE

# Masks are made of the lowest number of a dtype; half precision has infinity for it, as it should.
SENTINEL: Final = torch.finfo(torch.float32).max / 2


# A bit is lost where half of the values take half of their codes. Single ones take 0.86 times what half of the
# others take at least, where real MiniLM is checked on what it was calibrated on, and 0.59 times in a quick check.
USUAL, SINGLE = 1 / 2, 1 / 3


class NotFinite(NamedTuple):
    """What an operation gave that is not finite.

    Attributes:
        operation: its type.
        places: where, of the shape of the value.
        nan: whether it is a NaN somewhere.
        made: whether all of its inputs were finite.
    """

    operation: str
    places: Tensor
    nan: bool
    made: bool


Watched = Mapping[str, NotFinite]


class Watch:
    """Observes a run; see ``Evaluation``.

    Attributes:
        found: what was not finite, by the variable's name, in the order of the program.
        wide: whether the run is in float32, in which masks count as not finite.
    """

    def __init__(self, *, wide: bool) -> None:
        self.found: dict[str, NotFinite] = {}
        self.wide = wide
        self.tainted: set[Any] = set()

    def __call__(self, operation: Any, variable: Any, value: Tensor) -> None:
        """Look at the VALUE that OPERATION gave for VARIABLE."""
        if not value.is_floating_point():
            return
        places = ~(value.abs() < SENTINEL) if self.wide else ~value.isfinite()
        if bool(places.any()):
            self.tainted.add(variable)
            made = not any(source in self.tainted for source in reads(operation))
            nan = bool(value.isnan().any())
            self.found[variable.name] = NotFinite(operation.op_type, places, nan, made)


def reads(operation: Any) -> list[Any]:
    """Return the variables that OPERATION reads and whose values may be infinite."""
    return [it for it in variables_of(operation) if dtype_name(it).startswith("fp")]


@dataclass
class Grid:
    """Codes of 8 bits that a program rounds activations to, and what these were in steps, about its zero.

    Attributes:
        below: how many codes there are below zero.
        above: how many above.
        reach: the largest size of a number.
        size: how many numbers.
        cut: squares of what lies beyond the codes, summed.
    """

    below: float
    above: float
    reach: float = 0.0
    size: int = 0
    cut: float = 0.0

    def see(self, codes: Tensor) -> None:
        """Look at CODES before they are rounded."""
        beyond = codes - codes.clamp(-self.below, self.above)
        self.reach = max(self.reach, float(codes.abs().max()))
        self.size += codes.numel()
        self.cut += float((beyond.double() ** 2).sum())

    @property
    def share(self) -> float:
        """What part of its codes the numbers take; above 1 where they lie beyond."""
        return self.reach / max(self.below, self.above)

    def problem(self, usual: float) -> str:
        """Say that it cuts off more than rounding loses, or takes far less of its codes than USUAL; or nothing."""
        if 12 * self.cut > self.size:  # a step's rounding loses a twelfth of its square
            return f"it cuts off numbers up to {self.share:.2g} times its range"
        if 0 < self.share < SINGLE * usual:
            return (
                f"its numbers take {self.share:.2g} of its codes, those of the others {usual:.2g}"
            )
        return ""


class Grids:
    """Observes a run without rounding to codes.

    Attributes:
        found: the variable that is rounded -> its codes.
    """

    def __init__(self) -> None:
        self.found: dict[str, Grid] = {}

    def __call__(self, operation: Any, _: Any, value: Tensor) -> None:
        """Look at the VALUE that OPERATION gave."""
        if operation.op_type != "quantize" or not value.numel():
            return
        zero = operation.zero_point
        shift = 0.0 if zero is None else float(np.mean(zero.val))
        low, high = RANGE[operation.output_dtype.val]
        grid = self.found.setdefault(operation.input.name, Grid(shift - low, high - shift))
        grid.see(value - shift)

    def problems(self) -> list[str]:
        """Name the values whose codes do not fit, or all of them.

        Inputs of other sizes than these may need more of the codes.
        """
        usual = float(np.median([it.share for it in self.found.values() if it.share] or [1.0]))
        found = [f"{n}: {text}" for n, it in self.found.items() if (text := it.problem(usual))]
        if usual < USUAL:
            found.insert(
                0, f"half of the values that are rounded take {usual:.2g} of their codes or less"
            )
        return found


def overflows(narrow: Watched, wide: Watched) -> str:
    """Say what is not finite in a run in half precision and is in float32, or nothing.

    An infinity counts where an operation makes it of finite numbers; a NaN always.
    """
    for name, it in narrow.items():
        excused = wide[name].places if name in wide else torch.zeros(1, dtype=torch.bool)
        count = int((it.places & ~excused).sum())
        if count and (it.made or it.nan):
            what = "NaN or infinities" if it.nan else "infinities"
            return f"{name} ({it.operation}) holds {count} {what}"
    return ""
