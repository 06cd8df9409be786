"""Bring a trace into normal form: each output as pieces of inputs, where it is nothing but that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from ....common.dtypes import NUMPY, dtype_of
from ...execution.exchange import code, numpy_name
from ...notation.rules import Affine, Cast
from .forms import Form, joined, whole
from .opaque import Node
from .pieces import Unfit
from .recording import Trace

RESHAPES: Final = frozenset({"ExpandDims", "Flatten", "Reshape", "Squeeze", "Unflatten"})
KEEPS: Final = frozenset({"Contiguous", "Copy", "Full", "StopGradient"})
SYMBOLS: Final = {"Add": "+", "Multiply": "*", "Subtract": "-"}
FULL_GATHER: Final = 2  # operands of a Gather along one axis


def normal_forms(trace: Trace) -> dict[str, Form | None]:
    """Return the form of each output of TRACE by name, ``None`` where it has none."""
    walker = Walker(trace)
    for node in trace.nodes:
        walker.visit(node)
    return {name: walker.forms.get(array) for name, array in trace.outputs.items()}


class Walker:
    """The forms found so far, by the id of the array, and the constants that hold one number."""

    def __init__(self, trace: Trace) -> None:
        self.forms: dict[str, Form] = {
            array: whole(name, trace.headers[name].shape) for name, array in trace.inputs.items()
        }
        self.constants = trace.constants
        self.numbers: dict[str, Any] = {
            array: value.reshape(-1)[0]
            for array, value in trace.constants.items()
            if value.size and (value == value.reshape(-1)[0]).all()
        }

    def visit(self, node: Node) -> None:
        """Find the forms of what NODE makes; there are none where no handler knows it."""
        operands = [array[0] for array in node["inputs"]]
        if operands and all(operand in self.numbers for operand in operands):
            self.fold(node, operands)
        elif handler := HANDLERS.get(node["name"]):
            try:
                made = handler(self, node, operands)
            except (Unfit, KeyError):  # a KeyError: an operand has no form itself
                return
            made = [made] if isinstance(made, Form) else made
            self.forms.update(
                (output[0], form) for output, form in zip(node["outputs"], made, strict=True)
            )

    def fold(self, node: Node, operands: Sequence[str]) -> None:
        """Follow a constant that holds one number through what keeps it one."""
        if node["name"] in RESHAPES | KEEPS | {"Broadcast", "Transpose"}:
            self.numbers[node["outputs"][0][0]] = self.numbers[operands[0]]
        elif node["name"] == "AsType":
            dtype = dtype_of(numpy_name(node["arguments"][0]))
            self.numbers[node["outputs"][0][0]] = np.asarray(self.numbers[operands[0]]).astype(
                dtype
            )[()]


def _shape(node: Node) -> tuple[int, ...]:
    return tuple(node["outputs"][0][1])


def _keep(walker: Walker, node: Node, operands: Sequence[str]) -> Form:
    return walker.forms[operands[0]].reshaped(_shape(node))


def _broadcast(walker: Walker, node: Node, operands: Sequence[str]) -> Form:
    form = walker.forms[operands[0]]
    if np.prod(form.shape) != np.prod(_shape(node)):
        raise Unfit("elements are repeated")
    return form.reshaped(_shape(node))


def _transpose(walker: Walker, node: Node, operands: Sequence[str]) -> Form:
    return walker.forms[operands[0]].transposed(node["arguments"][0])


def _slice(walker: Walker, node: Node, operands: Sequence[str]) -> Form:
    form = walker.forms[operands[0]]
    for axis, bounds in enumerate(zip(*node["arguments"], strict=True)):
        start, stop, step = slice(*bounds).indices(form.shape[axis])
        form = form.sliced(axis, start, stop, step)
    return form


def _split(walker: Walker, node: Node, operands: Sequence[str]) -> list[Form]:
    form = walker.forms[operands[0]]
    stops, axis = node["arguments"]
    bounds = [0, *stops, form.shape[axis]]
    return [form.sliced(axis, a, b) for a, b in pairwise(bounds)]


def _join(walker: Walker, node: Node, operands: Sequence[str]) -> Form:
    return joined([walker.forms[operand] for operand in operands], node["arguments"][0])


def _gather(walker: Walker, node: Node, operands: Sequence[str]) -> Form:
    """Take the slices along one axis that a constant names, if they are few."""
    form, (axes, sizes) = walker.forms[operands[0]], node["arguments"]
    found = walker.constants.get(operands[1]) if len(operands) == FULL_GATHER else None
    full = [1 if axis in axes else size for axis, size in enumerate(form.shape)]
    if found is None or found.ndim > 1 or list(sizes) != full:
        raise Unfit("its elements are chosen by an index that is computed")
    [axis] = axes
    indices = [int(i) % form.shape[axis] for i in found.reshape(-1)]
    parts = [form.sliced(axis, i, i + 1).reshaped((1, *sizes)) for i in indices]
    return joined(parts, 0).reshaped(_shape(node))


def _view(walker: Walker, node: Node, operands: Sequence[str]) -> Form:
    old, new = (NUMPY[code(array[2])].itemsize for array in (node["inputs"][0], node["outputs"][0]))
    return walker.forms[operands[0]].viewed(_shape(node), old, new)


def _cast(walker: Walker, node: Node, operands: Sequence[str]) -> Form:
    form = walker.forms[operands[0]]
    old, new = (numpy_name(array[2]) for array in (node["inputs"][0], node["outputs"][0]))
    return form if old == new else form.changed(Cast(new))


def _affine(walker: Walker, node: Node, operands: Sequence[str]) -> Form:
    """Add, subtract or multiply by one number."""
    at = 0 if operands[1] in walker.numbers else 1
    number, symbol = walker.numbers[operands[1 - at]], SYMBOLS[node["name"]]
    form = walker.forms[operands[at]]
    if form.shape != _shape(node) or not np.isfinite(number) or (symbol == "-" and at):
        raise Unfit("its numbers are combined with an array, not with one number")
    if number.dtype.kind in "iub" or (symbol == "*" and number == 0):
        raise Unfit("its integers change, or all of its numbers become 0")
    amount = float(number) * (-1 if symbol == "-" else 1)
    if (symbol, amount) == ("*", 1.0):
        return form
    shown = int(amount) if amount.is_integer() and abs(amount) < 2**53 else amount
    return form.changed(Affine("*" if symbol == "*" else "+", shown))


def _negative(walker: Walker, node: Node, operands: Sequence[str]) -> Form:  # noqa: ARG001
    return walker.forms[operands[0]].changed(Affine("*", -1))


Handler = Callable[[Walker, Node, Sequence[str]], Form | list[Form]]
HANDLERS: Final[Mapping[str, Handler]] = {
    **dict.fromkeys(RESHAPES | KEEPS, _keep),
    **dict.fromkeys(SYMBOLS, _affine),
    "AsType": _cast,
    "Broadcast": _broadcast,
    "Concatenate": _join,
    "Gather": _gather,
    "Negative": _negative,
    "Slice": _slice,
    "Split": _split,
    "Transpose": _transpose,
    "View": _view,
}
