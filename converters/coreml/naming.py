"""Passes of coremltools. One names operations as the nodes of the torch graph they come from.

coremltools names some operations (``linear``) by a counter of the process, and what it makes of
them for float16 is named after that, so that a name said nothing, or another node, of its origin.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ..captures.mlprogram.toolkit import quiet

with quiet():
    from coremltools.converters.mil.mil.passes.graph_pass import AbstractGraphPass
    from coremltools.converters.mil.mil.passes.pass_registry import register_pass

NAMING: Final = "weighbridge::name_operations"
FORGETTING: Final = "weighbridge::forget_output_types"


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


def operations(block: Any) -> Iterator[Any]:
    """Yield the operations of BLOCK and of the blocks inside them."""
    for operation in block.operations:
        yield operation
        for inner in operation.blocks:
            yield from operations(inner)
