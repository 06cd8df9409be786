"""The constants of recurrent operations, of which converters make other tensors than PyTorch keeps.

Core ML's LSTM has its gates in the order input, forget, output, cell, PyTorch's in the order input, forget,
cell, output; and each of its layers has one bias, the sum of PyTorch's two.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

from ...converters.captures.mlprogram.arithmetic import GATES

if TYPE_CHECKING:
    from ...converters.captures.mlprogram.program import Program
    from .source import SourceTensors

WAYS: Final = ("", "_back")


def gates(program: Program, source: SourceTensors) -> Iterator[tuple[str, Any]]:
    """Yield constants of recurrent operations by name, each with what its values may be.

    Yields:
        A constant and arithmetic on tensors; of one constant several.
    """
    from ...converters.captures.mlprogram.variables import every_operation

    for operation in every_operation(program.body):
        order = GATES.get(operation.op_type)
        given = operation.inputs if order is not None else {}
        for slot in (f"{part}{way}" for part in ("weight_ih", "weight_hh", "bias") for way in WAYS):
            if (variable := given.get(slot)) is not None:
                for it in likely(slot, variable.shape, source):
                    yield variable.name, ["order", it, *order] if order else it


def begins(variable: Any) -> bool:
    """Say whether a variable of a program is only what recurrent operations begin with."""
    slots = ("initial_h", "initial_c")
    users = [*variable.child_ops]
    return bool(users) and all(any(it.inputs.get(n) is variable for n in slots) for it in users)


def likely(slot: str, shape: tuple[int, ...], source: SourceTensors) -> Iterator[Any]:
    """Yield what a constant of SHAPE in a SLOT may be, but for the order of its gates."""
    keys = [{"key": name} for name in source.of_size(shape)]
    yield from keys
    if slot.startswith("bias"):
        yield from (["add", *pair] for pair in combinations(keys, 2))
