"""Passes of coremltools: one of our own, what its own leave alone, and what it need not do each time.

One names operations as the nodes of the torch graph they come from. coremltools names some operations
(``linear``) by a counter of the process, and what it makes of them for float16 is named after that, so
that a name said nothing, or another node, of its origin.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

import numpy as np

from ..captures.mlprogram.evaluator import dtype_name
from ..captures.mlprogram.toolkit import quiet
from ..values import Array

with quiet():
    from coremltools.converters import _converters_entry
    from coremltools.converters.mil.mil import Program, Var
    from coremltools.converters.mil.mil.passes.defs.cleanup import noop_elimination
    from coremltools.converters.mil.mil.passes.graph_pass import AbstractGraphPass
    from coremltools.converters.mil.mil.passes.pass_pipeline import PassPipelineManager
    from coremltools.converters.mil.mil.passes.pass_registry import PASS_REGISTRY, register_pass

NAMING: Final = "weighbridge::name_operations"
FORGETTING: Final = "weighbridge::forget_output_types"
SUMS: Final = frozenset({"add", "sub"})
DIVIDING: Final = "common::distributive_quantized_binary_op_scale_normalization"
MUCH: Final = 1 << 26  # bytes of weights, whose copies a conversion leaves as garbage
PARAMETER: Final = "p_"  # what torch.export puts before the names of parameters


@register_pass(namespace="weighbridge", name="name_operations")
class NameOperations(AbstractGraphPass):  # type: ignore[misc]
    """Give every operation with one output the name of that output."""

    def apply(self, prog: Any) -> None:
        """Name the operations of all functions of PROG, in place."""
        for function in prog.functions.values():
            for operation in operations(function):
                if len(operation.outputs) == 1:
                    operation.name = operation.outputs[0].name


@register_pass(namespace="weighbridge", name="forget_output_types")
class ForgetOutputTypes(AbstractGraphPass):  # type: ignore[misc]
    """Forget the types that outputs were asked to have, once they have them.

    coremltools 9.0 looks the types up by the number of an output, and a classifier has two more.
    """

    def apply(self, prog: Any) -> None:
        """Forget the types of outputs of all functions of PROG, in place."""
        for function in prog.functions.values():
            function.set_output_types(None)


def before_rounding(name: str) -> str:
    """Return what coremltools called a variable before it cast it to float16.

    >>> before_rounding("const_61_to_fp16"), before_rounding("linear_0_cast_fp16")
    ('const_61', 'linear_0')
    """
    return re.sub(r"_(?:cast|to)_fp16(?:_\d+)?$", "", name)


def operations(block: Any) -> Iterator[Any]:
    """Yield the operations of BLOCK and of the blocks inside them."""
    for operation in block.operations:
        yield operation
        for inner in operation.blocks:
            yield from operations(inner)


@contextmanager
def sums_kept() -> Iterator[None]:
    """Let coremltools keep the sum of a parameter and a number as an operation, inside the block.

    Several parameters round to the same sum, so folded into one constant (``1 + w`` of Gemma's norms)
    they could not be told. Core ML's own compiler folds it on the device.
    """
    theirs = Var.can_be_folded_to_const

    def ours(variable: Any) -> bool:
        return bool(theirs(variable)) and not is_sum(variable.op)

    with patch.object(Var, "can_be_folded_to_const", ours):
        yield


def rounded_kept(exact: Mapping[str, Array]) -> Any:
    """Let coremltools keep what multiplies by a number that float16 alone makes 1, or adds one that it makes 0.

    In the block it would leave such operations out as if they did nothing, and so floors of x / 1. EXACT are
    constants before they were rounded, known once it has begun to cast.
    """
    theirs = noop_elimination._match_pattern

    def ours(operation: Any) -> Any:
        alike = (
            it for it in operation.inputs.values() if isinstance(it, Var) and is_rounded(it, exact)
        )
        whole = operation.op_type == "floor_div" and dtype_name(operation.outputs[0]) != "int32"
        return None if whole or any(alike) else theirs(operation)

    return patch.object(noop_elimination, "_match_pattern", ours)


def is_rounded(variable: Any, exact: Mapping[str, Array]) -> bool:
    """Say whether VARIABLE is a constant in float16 with other numbers than it has in EXACT."""
    before = exact.get(before_rounding(variable.name))
    if before is None or variable.val is None or variable.val.dtype != np.float16:
        return False
    return not np.array_equal(before, variable.val)


def scales_kept() -> Any:
    """Let coremltools keep scales as they are measured, inside the block.

    It divides those of sums by one another, and rounds the quotients to float16 once more: 2e-4 of the output.
    """
    kind = type(PASS_REGISTRY[DIVIDING])
    return patch.object(kind, "apply", lambda *_: None)


def is_sum(operation: Any) -> bool:
    """Say whether OPERATION adds a number to a parameter with axes, or gives such a sum another precision."""
    if operation is not None and operation.op_type == "cast":
        return is_sum(operation.inputs["x"].op)
    if operation is None or operation.op_type not in SUMS:
        return False
    one, other = operation.inputs["x"], operation.inputs["y"]
    both = any(is_number(it) for it in (one, other)), any(is_parameter(it) for it in (one, other))
    return all(both)


def is_number(variable: Any) -> bool:
    """Say whether VARIABLE is a constant without axes."""
    return variable.rank == 0 and variable.val is not None


def is_parameter(variable: Any) -> bool:
    """Say whether VARIABLE is a parameter with axes, rounded or not."""
    kind = variable.op and variable.op.op_type
    named = variable.name.startswith(PARAMETER)
    return bool(named and kind in ("cast", "const") and variable.rank and variable.val is not None)


@contextmanager
def programs_checked_once() -> Iterator[None]:
    """Let coremltools check a program after all passes of a pipeline, inside the block, and not after each of ninety."""
    apply = PassPipelineManager.apply_pipeline

    def ours(program: Any, pipeline: Any) -> None:
        with patch.object(Program, "validate", lambda *_, **_options: None):
            apply(program, pipeline)
        program.validate()

    with patch.object(PassPipelineManager, "apply_pipeline", staticmethod(ours)):
        yield


@contextmanager
def little_garbage_left(graph: Any) -> Iterator[None]:
    """Let coremltools look for garbage after a conversion of GRAPH, in the block, only where its weights are large.

    Python looks at all that torch and transformers have made, half a second whatever the model.
    """
    large = sum(it.nbytes for it in graph.state_dict.values()) > MUCH
    collect = gc.collect if large else lambda: 0
    with patch.object(_converters_entry, "gc", SimpleNamespace(collect=collect)):
        yield
