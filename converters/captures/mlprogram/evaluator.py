"""Run the operations of an ML program with PyTorch kernels.

Values are held in float32 and int32. In precision ``declared`` every output is rounded to the dtype
that the program declares, so that float16 operations are computed in float32 and rounded once; in
precision ``float32`` floats are never rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from ....errors import BadInputError
from ...values import Array
from .kernels.constexpr import CONSTEXPR, expand
from .kernels.kernel import Kernel, kernel
from .kernels.quantized import RANGE as CODES
from .kernels.quantized import codes_of
from .names import CLASSIFY, results
from .toolkit import types

NAMES: Final = (
    *("convolution", "draws", "elementwise", "images", "indexing", "linear", "lists"),
    *("normalization", "quantized", "recurrent", "reductions", "sampling", "shapes"),
)
THEMES: Final = tuple(import_module(f".kernels.{name}", __package__) for name in NAMES)
KERNELS: Final[Mapping[str, Kernel]] = {
    name: kernel(function) for theme in THEMES for name, function in theme.KERNELS.items()
}
NUMPY: Final[Mapping[str, str]] = {"fp16": "float16", "fp32": "float32", "fp64": "float64"}
INTEGERS: Final[Mapping[str, torch.dtype]] = {
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int16": torch.int16,
    "uint16": torch.uint16,
    "int32": torch.int32,
    "uint32": torch.uint32,
    "int64": torch.int64,
}
WIDE: Final = frozenset({"uint32", "int64"})

# Operations that make no numbers: of rounded ones theirs are rounded.
MOVING: Final = frozenset(
    {
        *(
            "concat",
            "expand_dims",
            "gather",
            "gather_along_axis",
            "gather_nd",
            "identity",
            "reshape",
        ),
        *("slice_by_index", "slice_by_size", "split", "squeeze", "stack", "tile", "transpose"),
    }
)

PIECE: Final = (
    1 << 15
)  # numbers that are rounded in a core's cache; torch shares out larger ones, which takes longer

Finished = list[tuple[Any, list[Any]]]
Observer = Callable[[Any, Any, Tensor], Tensor | None]


def dtype_name(variable: Any) -> str:
    """Return MIL's name of the dtype of a variable, such as ``fp16``; ``list`` for a list."""
    if types.is_list(variable.sym_type):
        return "list"
    return str(types.builtin_to_string(variable.dtype))


def numpy_name(variable: Any) -> str:
    """Return numpy's name of the dtype of a variable."""
    name = dtype_name(variable)
    return NUMPY.get(name, name)


def settle(value: Any, dtype: str, precision: str, *, ours: bool = False) -> Any:
    """Round VALUE to what DTYPE can hold, and hold it in float32, int32, int64 or bool.

    It is rounded where it lies if it is OURS, which nothing else reads.
    """
    if not isinstance(value, Tensor):
        return value
    if dtype.startswith("fp"):
        half = dtype == "fp16" and precision == "declared"
        if half and ours:
            for piece in torch.split(value.view(-1), PIECE):
                piece.copy_(piece.half())
            return value
        return value.half().float() if half else value.float()
    if dtype == "bool":
        return value.bool()
    wrapped = value.long().to(INTEGERS.get(dtype, torch.int32))
    return wrapped.to(torch.int64 if dtype in WIDE else torch.int32)


def is_new(value: Any, given: Mapping[str, Any]) -> bool:
    """Say whether VALUE lies apart from all that was GIVEN to its kernel, each number in a place of its own."""
    if not isinstance(value, Tensor) or value.dtype != torch.float32 or not value.is_contiguous():
        return False
    groups = (it if isinstance(it, list) else [it] for it in given.values())
    tensors = (it for group in groups for it in group if isinstance(it, Tensor))
    place = value.untyped_storage().data_ptr()
    return all(it.untyped_storage().data_ptr() != place for it in tensors)


def held(value: Any) -> Any:
    """Return a constant as the evaluator holds it; strings and the like stay."""
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        return value
    kind = {"b": np.bool_, "f": np.float32}.get(array.dtype.kind, np.int64)
    tensor = torch.from_numpy(np.array(array, dtype=kind, order="C"))
    return tensor.int() if kind is np.int64 and array.dtype.itemsize < 8 else tensor


def constant_value(variable: Any) -> Any:
    """Return what a constant or constexpr variable holds, expanded, as MIL declares it."""
    if variable.val is not None:
        return variable.val
    given = {k: constant_value(v) for k, v in variable.op.inputs.items() if v is not None}
    return expand(variable.op.op_type, given)[variable.op.outputs.index(variable)]


def variables_of(operation: Any) -> Iterator[Any]:
    """Yield the variables that OPERATION itself reads."""
    for it in operation.inputs.values():
        yield from it if isinstance(it, list | tuple) else () if it is None else (it,)


def read_by(operation: Any) -> Iterator[Any]:
    """Yield what OPERATION and those in its blocks read."""
    yield from variables_of(operation)
    for block in operation.blocks:
        yield from results(block)
        for inner in block.operations:
            yield from read_by(inner)


def last_read(block: Any) -> Finished:
    """Return the operations of BLOCK, each with those of the block's values that nothing reads after it."""
    later = set(results(block))
    own = {it for operation in block.operations for it in operation.outputs}
    found: Finished = []
    for operation in reversed(block.operations):
        finished = own & {*read_by(operation)} - later
        later |= finished
        found.append((operation, [*finished]))
    return found[::-1]


class Evaluation:
    """One run: the values of variables so far, the states, and who watches."""

    def __init__(
        self,
        constants: MutableMapping[Any, Any],
        states: MutableMapping[str, Tensor],
        precision: str,
        observe: Observer | None = None,
        *,
        rounds: bool = True,
    ) -> None:
        self.values: dict[Any, Any] = {}
        self.constants = constants  # kept from run to run
        self.states = states
        self.precision = precision
        self.observe = observe
        self.lasting: dict[Any, Finished] = {}  # of each block, found once
        self.rounds = rounds  # activations to the codes of `quantize`

    def value(self, variable: Any) -> Any:
        """Return the value of a variable, or of a tuple of them."""
        if isinstance(variable, list | tuple):
            return [self.value(item) for item in variable]
        if variable in self.values:
            return self.values[variable]
        if variable not in self.constants:
            self.constants[variable] = held(constant_value(variable))
        return self.constants[variable]

    def block(self, block: Any) -> list[Any]:
        """Run all operations of BLOCK and return its outputs; what nothing will read is forgotten."""
        if block not in self.lasting:
            self.lasting[block] = last_read(block)
        for operation, finished in self.lasting[block]:
            self.operation(operation)
            for variable in finished:
                self.values.pop(variable, None)
        return [self.value(output) for output in results(block)]

    def operation(self, operation: Any) -> None:
        """Run OPERATION and keep its outputs; constants are computed when first asked for."""
        kind = operation.op_type
        if kind in ("const", CLASSIFY) or kind in CONSTEXPR:
            return
        control = CONTROL.get(kind)
        given = {} if control else self.given(operation)
        made = control(self, operation) if control else self.kernel(operation, given)
        rounded = kind in MOVING and self.are_rounded(operation)
        for variable, value in zip(operation.outputs, made, strict=False):
            kept = value
            codes = not self.rounds and isinstance(value, Tensor) and value.is_floating_point()
            dtype = "fp32" if codes and dtype_name(variable) in CODES else dtype_name(variable)
            if not (rounded and dtype == "fp16"):
                ours = control is None and is_new(value, given)
                kept = settle(value, dtype, self.precision, ours=ours)
            if self.observe and isinstance(kept, Tensor):
                replacement = self.observe(operation, variable, kept)
                kept = kept if replacement is None else replacement
            self.values[variable] = kept

    def are_rounded(self, operation: Any) -> bool:
        """Say whether all numbers that OPERATION reads were rounded to float16 in this run."""
        read = [it for it in variables_of(operation) if not it.op or it.op.op_type != "const"]
        numbers = (it for it in read if dtype_name(it).startswith("fp"))
        return all(it in self.values and dtype_name(it) == "fp16" for it in numbers)

    def given(self, operation: Any) -> dict[str, Any]:
        """Return what OPERATION reads, by the names of its inputs."""
        return {k: self.value(v) for k, v in operation.inputs.items() if v is not None}

    def kernel(self, operation: Any, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Run an ordinary operation on INPUTS."""
        if operation.op_type == "quantize" and not self.rounds:
            return (codes_of(**{k: v for k, v in inputs.items() if k != "output_dtype"}),)
        try:
            return KERNELS[operation.op_type](inputs)
        except (IndexError, RuntimeError, ValueError) as error:
            where = f"{operation.outputs[0].name} ({operation.op_type})"
            reason = str(error).splitlines()[0]
            raise BadInputError(
                f"the program cannot run on this input: {where}: {reason}"
            ) from error

    def cond(self, operation: Any) -> list[Any]:
        """Run one of two blocks."""
        return self.block(operation.blocks[0 if bool(self.value(operation.pred)) else 1])

    def while_loop(self, operation: Any) -> list[Any]:
        """Run the body while the condition holds."""
        condition, body = operation.blocks
        variables = self.value(operation.loop_vars)
        while True:
            self.values.update(zip(condition.inputs, variables, strict=True))
            if not bool(self.block(condition)[0]):
                return list(variables)
            self.values.update(zip(body.inputs, variables, strict=True))
            variables = self.block(body)

    def read_state(self, operation: Any) -> list[Tensor]:
        """Return a copy of a state."""
        return [self.states[operation.input.name].clone()]

    def update_state(self, operation: Any) -> list[Tensor]:
        """Write a state, rounded to its dtype, and return a copy of it."""
        dtype = dtype_name(operation.state)
        value = settle(self.value(operation.value), dtype, self.precision)
        self.states[operation.state.name] = value.clone()
        return [value.clone()]


CONTROL: Final[Mapping[str, Callable[[Evaluation, Any], Any]]] = {
    "cond": Evaluation.cond,
    "coreml_update_state": Evaluation.update_state,
    "read_state": Evaluation.read_state,
    "while_loop": Evaluation.while_loop,
}
# The loader turns write_state into coreml_update_state.
KNOWN: Final = frozenset({"const", CLASSIFY, "write_state", *KERNELS, *CONSTEXPR, *CONTROL})


def released(value: Any, dtype: str) -> Array:
    """Return a held tensor as an array of DTYPE, a numpy name."""
    array: Array = value.numpy()
    return array.astype(dtype)
