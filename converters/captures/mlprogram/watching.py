"""What is not finite inside a program, seen while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from .evaluator import dtype_name

# Masks are made of the lowest number of a dtype; half precision has infinity for it, as it should.
SENTINEL: Final = torch.finfo(torch.float32).max / 2


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
    given = [v for v in operation.inputs.values() if v is not None]
    flat = [v for group in given for v in (group if isinstance(group, list | tuple) else [group])]
    return [variable for variable in flat if dtype_name(variable).startswith("fp")]


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
