"""Constants of a program, read by Core AI; in the process of an asset."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from coreai._compiler._mlir_libs._coreaiIR._bindings.compiler import copy_constant_value_to_array

from ....common.dtypes import NUMPY
from ....values import Array

CODES: Final[Mapping[str, str]] = {  # MLIR's names of element types, as safetensors codes
    "f16": "F16",
    "bf16": "BF16",
    "f32": "F32",
    "f64": "F64",
    "i1": "BOOL",
    **{f"si{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"ui{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
}
TENSOR: Final = re.compile(r"tensor<((?:\d+x)*)(\w+)>")


def constants(module: Any) -> Iterator[tuple[int, Array]]:
    """Yield number and values of the constants in MODULE; the number is the operation's."""
    for position, operation in enumerate(operations(module)):
        fits = operation.name == "coreai.constant" and TENSOR.fullmatch(
            str(operation.results[0].type)
        )
        if not fits or fits[2] not in CODES:
            continue
        shape = tuple(int(size) for size in fits[1].split("x")[:-1])
        array = np.empty(shape, NUMPY[CODES[fits[2]]])
        flat = array.reshape(-1).view(np.uint8)
        copy_constant_value_to_array(constant_op=operation, destination=flat)
        yield position, array


def operations(operation: Any) -> Iterator[Any]:
    """Yield OPERATION and all inside of it, in the order of the text."""
    yield operation
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from operations(inner.operation)
