"""Which operations of a program compute in float16, and what its constants were before rounding.

Core ML's own choice is all of them. Positions, inverse frequencies and masks then have three digits: at
position 2,000 a rotary angle is off by a radian. Squares of norms overflow at 256. Both are small.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from torch import Tensor

from ..captures.mlprogram.evaluator import dtype_name
from ..captures.mlprogram.program import Program
from ..captures.mlprogram.texts import Text, run_program
from ..captures.mlprogram.watching import SENTINEL
from ..values import Array
from .naming import before_rounding, is_sum

HALF_MAXIMUM: Final = 65504.0
COMPUTES: Final = ("mixed", "float16", "float32")
SQUARES: Final = frozenset({"reduce_sum_square", "reduce_l2_norm"})
SUMS: Final = frozenset({"reduce_mean", "reduce_sum"})
# What follows the mean of squares in a norm.
SCALES: Final = frozenset(
    {
        "add",
        "expand_dims",
        "inverse",
        "maximum",
        "mul",
        "pow",
        "real_div",
        "reshape",
        "rsqrt",
        "sqrt",
    }
)
PRODUCTS: Final = frozenset({"mul", "real_div"})
TURNS: Final = "c_turns_"  # begins the names of what Fourier transforms multiply by
# What goes on with a transform in float32: until something else, such as a layer, reads it.
CARRYING: Final = SCALES | {
    "concat", "log", "pad", "slice_by_index", "split", "square", "squeeze", "stack", "sub", "transpose"
}  # fmt: skip


def flat(operation: Any) -> Iterator[Any]:
    """Yield the variables that OPERATION reads."""
    for given in operation.inputs.values():
        yield from given if isinstance(given, list | tuple) else filter(None, [given])


def is_float(variable: Any) -> bool:
    """Say whether a variable holds floating-point numbers."""
    return dtype_name(variable).startswith("fp")


class Selection:
    """Answers coremltools which operations to cast to float16.

    Attributes:
        compute: ``mixed`` or ``float16``.
        activations: names of the graph's nodes that depend on weights or on floating-point inputs.
        outside: operations whose values float16 cannot hold, which a run has shown.
        exact: every floating-point constant before rounding.
        wide: the operations that stay in float32.
    """

    def __init__(
        self, compute: str, activations: Collection[str], outside: Collection[str] = ()
    ) -> None:
        self.compute, self.activations, self.outside = compute, activations, outside
        self.exact: dict[str, Array] = {}
        self.wide: set[str] = set()

    def __call__(self, operation: Any) -> bool:
        """Say whether OPERATION is to compute in float16."""
        if not self.exact:
            self.begin(operation.enclosing_block)
        return operation.name not in self.wide

    def begin(self, block: Any) -> None:
        """Look at the whole program, before the first operation is cast."""
        for operation in block.operations:
            if operation.op_type == "const" and is_float(operation.outputs[0]):
                self.exact[operation.outputs[0].name] = np.asarray(operation.outputs[0].val)
        if self.compute == "mixed":
            self.wide = {*positional(block, self.activations), *norms(block), *self.outside}
            self.wide |= {*spectra(block)}
            self.wide |= {operation.name for operation in block.operations if is_sum(operation)}


def beyond_half(
    program: Program,
    inputs: Mapping[str, Array],
    sizes: Sequence[int] = (),
    text: Text | None = None,
) -> set[str]:
    """Return the operations of PROGRAM, which may read a TEXT, that meet a number beyond float16.

    SIZES say how many tokens of it a call reads: all where they are none.
    Numbers as large as a mask's are none: a mask may be infinite.
    """
    found: set[str] = set()

    def observe(operation: Any, variable: Any, value: Tensor) -> None:
        sizes = value.abs() if value.is_floating_point() else value.new_zeros(1)
        if bool(((sizes > HALF_MAXIMUM) & (sizes < SENTINEL)).any()):
            found.update(map(before_rounding, (operation.name, variable.name)))
            found.update(before_rounding(user.name) for user in variable.child_ops)

    how = {"precision": "float32", "observe": observe}
    run_program(program, text, inputs, lambda: how, sizes)
    return found


def positional(block: Any, activations: Collection[str]) -> Iterator[str]:
    """Yield the operations that make floats without weights or activations: positions and masks."""
    live = {variable for variable in block.inputs.values() if is_float(variable)}
    for operation in block.operations:
        floats = set(filter(is_float, operation.outputs))  # a shape is none of what has it
        if operation.op_type == "const":
            live |= {variable for variable in floats if variable.name in activations}
        elif any(variable in live for variable in flat(operation)):
            live |= floats
        elif floats:
            yield operation.name


def norms(block: Any) -> Iterator[str]:
    """Yield the operations of norms: squares, their mean, and what is made of it up to the weight."""
    for operation in block.operations:
        source = getattr(operation.inputs.get("x"), "op", None)
        squared = source if operation.op_type in SUMS and source and is_square(source) else None
        if squared is None and operation.op_type not in SQUARES:
            continue
        yield operation.name
        if squared is not None:
            yield squared.name
            yield from centred(squared)
        yield from scaled(operation)


def spectra(block: Any) -> Iterator[str]:
    """Yield the operations of Fourier transforms, and what scales, squares or moves their results.

    Each number is a sum of all of a window: as products in float16 it errs by more than rounding it does.
    """
    made: set[Any] = set()
    for operation in block.operations:
        read = {*flat(operation)}
        own = any(it.name.startswith(TURNS) and it.val is not None for it in read)
        if own or (operation.op_type in CARRYING and read & made):
            made |= {*operation.outputs}
            yield operation.name


def is_square(operation: Any) -> bool:
    """Say whether OPERATION squares its input."""
    given = operation.inputs
    if operation.op_type == "pow":
        return given["y"].val is not None and bool(np.all(given["y"].val == 2))
    return operation.op_type == "square" or (
        operation.op_type == "mul" and given["x"] is given["y"]
    )


def centred(square: Any) -> Iterator[str]:
    """Yield what subtracts a mean before SQUARE, and that mean."""
    source = square.inputs["x"].op
    if source is not None and source.op_type == "sub":
        yield source.name
        yield from (v.op.name for v in flat(source) if v.op and v.op.op_type in SUMS)


def scaled(operation: Any) -> Iterator[str]:
    """Yield what follows OPERATION until something is scaled by it, and that one's own weight."""
    for user in users(operation):
        varying = [variable for variable in flat(user) if variable.val is None]
        if user.op_type in SCALES and len(varying) == 1:
            yield user.name
            yield from scaled(user)
        elif user.op_type in PRODUCTS:
            yield user.name
            yield from (it.name for it in users(user) if it.op_type == "mul" and has_weight(it))


def users(operation: Any) -> list[Any]:
    """Return the operations that read what OPERATION makes."""
    return [user for variable in operation.outputs for user in variable.child_ops]


def has_weight(operation: Any) -> bool:
    """Say whether an input of OPERATION is a constant with axes."""
    return any(variable.val is not None and variable.rank > 0 for variable in flat(operation))
