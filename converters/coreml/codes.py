"""Codes of a quantized source kept in a package: the dense constants made of them become codes again."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from ...errors import UnsupportedError
from ..captures.constants import of_codes
from ..captures.mlprogram.program import Program, load_program
from ..captures.mlprogram.toolkit import coremltools, quiet, types
from ..common.steps import step
from ..quantization import Blocks, Dequantized
from ..quantization.constants.coreml import Shift, shift
from ..values import Array
from .compress import raise_target
from .naming import scales_kept
from .writing import replace_package, save

with quiet():
    from coremltools.converters.mil.mil import Builder
    from coremltools.converters.mil.mil.passes.graph_pass import AbstractGraphPass
    from coremltools.models.utils import _apply_graph_pass

ENDING: Final = "_quantized"  # as coremltools itself calls what it compresses
REMEDY: Final = "weighbridge quantize --method mlx puts them on codes, as mlx-lm does"
ROUNDED: Final = 2.0**-11  # by which part rounding a scale to float16 moves it at most


class Kept(NamedTuple):
    """What became of the quantized weights of a source.

    Attributes:
        codes: those whose codes the package has, each with how far a value moved at most, in steps.
        dense: those that stay dense, and why.
    """

    codes: dict[str, float]
    dense: dict[str, str]


class KeepCodes(AbstractGraphPass):  # type: ignore[misc]
    """Puts codes in the place of constants, by name."""

    def __init__(self, constants: dict[str, Shift]) -> None:
        super().__init__()
        self.constants = constants

    def apply(self, prog: Any) -> None:
        """Change all functions of PROG, in place."""
        for function in prog.functions.values():
            with function:
                for operation in [it for it in function.operations if it.name in self.constants]:
                    put(operation, self.constants[operation.name])


def put(operation: Any, codes: Shift) -> None:
    """Put CODES in the place of the constant OPERATION."""
    kind = types.type_mapping.string_to_nptype(f"uint{codes.bits}")
    dtype = np.asarray(operation.outputs[0].val).dtype
    made = Builder.constexpr_blockwise_shift_scale(
        data=codes.data.astype(kind),
        scale=codes.scale.astype(dtype),
        offset=codes.offset.astype(kind),
        before_op=operation,
        name=f"{operation.name}{ENDING}",
    )
    block = operation.enclosing_block
    block.replace_uses_of_var_after_op(
        anchor_op=operation, old_var=operation.outputs[0], new_var=made, no_check_var_types=True
    )
    block.remove_ops([operation])


def keep_codes(package: Path, tensors: Dequantized) -> Kept:
    """Give PACKAGE the codes of TENSORS in place of the dense constants made of them, in place.

    Which constant is which weight is known by its values. A weight whose zero is no code stays dense, and
    so does one of codes that are not linear.
    """
    step("keeping the codes of the source")
    found = Kept({}, {})
    constants = dict(codes_of(load_program(package), tensors, found))
    if not constants:
        return found
    raise_target(package)
    folder = tempfile.TemporaryDirectory(dir=package.parent, prefix=".codes-")
    with quiet(), scales_kept(), folder as place:
        model = coremltools.models.MLModel(str(package), skip_model_load=True)
        made = _apply_graph_pass(model, KeepCodes(constants), skip_model_load=True)
        save(made, Path(place) / package.name)
        replace_package(package, Path(place) / package.name)
    return found


def codes_of(program: Program, tensors: Dequantized, found: Kept) -> Iterator[tuple[str, Shift]]:
    """Yield the codes of each constant of PROGRAM that is made of a weight of TENSORS; fill FOUND."""
    constants = program.constants()
    for weight, dense, fitting in of_codes(constants, tensors):
        try:
            codes = shift(Blocks(tensors.parts(weight), tensors.schemes[weight]))
        except UnsupportedError as error:
            found.dense[weight] = str(error)
            continue
        if not fitting:
            found.dense[weight] = (
                "no constant of the package has its values (an adapter may have changed it)"
            )
            continue
        gap = moved(codes, dense, constants[fitting[0]].dtype)
        if gap > ROUNDED * 2**codes.bits:
            found.dense[weight] = f"its zeros lie up to {gap:.2g} of a step beside a code; {REMEDY}"
            continue
        found.codes[weight] = gap
        yield from ((name, codes) for name in fitting)


def moved(codes: Shift, dense: Array, dtype: Any) -> float:
    """Return how far CODES, their scales in DTYPE, lie from DENSE at most, in steps."""
    scale = codes.scale.astype(dtype)
    gaps = np.abs(codes._replace(scale=scale).values() - dense)
    steps = np.repeat(codes.scale.astype(np.float64), dense.shape[-1] // scale.shape[-1], axis=-1)
    return float(np.max(gaps / steps, initial=0.0))
