"""A program in float16 computed in float32, its constants as they are; in the process of an asset."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from coreai._compiler.ir import DenseElementsAttr, FunctionType, Type, TypeAttr
from coreai.authoring import AIProgram

from ....values import Array
from .constants import constants, operations

NARROW: Final = re.compile(r"(?<=[x<])f16(?=[>,])")


def is_narrow(program: AIProgram) -> bool:
    """Say whether PROGRAM computes anything in float16."""
    found = operations(program._module._mlir_module.operation)
    return any(NARROW.search(str(it.type)) for operation in found for it in operation.results)


def widen(program: AIProgram, exact: Mapping[int, Array]) -> None:
    """Let PROGRAM compute in float32 whatever it computes in float16, in place.

    EXACT are constants, by number, that it has in place of its own.
    """
    module = program._module._mlir_module.operation
    with module.context, module.location:
        narrow = {at: it for at, it in constants(module) if it.dtype == np.float16}
        values = {**narrow, **exact}
        for number, operation in enumerate(operations(module)):
            _widen(operation, values.get(number))


def _widen(operation: Any, value: Array | None) -> None:
    """Widen one OPERATION, a constant of VALUE if it is to have one."""
    if value is not None:
        operation.attributes["value"] = DenseElementsAttr.get(value.astype(np.float32))
    if operation.name == "coreai.graph":
        kind = operation.attributes["function_type"].value
        sides = ([wide(it) for it in side] for side in (kind.inputs, kind.results))
        operation.attributes["function_type"] = TypeAttr.get(FunctionType.get(*sides))
    blocks = (block for region in operation.regions for block in region.blocks)
    for result in (*operation.results, *(it for block in blocks for it in block.arguments)):
        result.set_type(wide(result.type))


def wide(kind: Type) -> Type:
    """Return KIND with float32 in the place of float16."""
    return Type.parse(NARROW.sub("f32", str(kind)))
