"""The variables of an ML program, and which of them are its constants: weights and single numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ...values import Array
from .evaluator import constant_value, dtype_name
from .kernels.constexpr import CONSTEXPR


def variables(body: Any) -> dict[str, Any]:
    """Return the variables that a function's operations make, by name; nested blocks aside."""
    return {out.name: out for operation in body.operations for out in operation.outputs}


def every_operation(body: Any) -> Iterator[Any]:
    """Yield the operations of a function, those of nested blocks behind that which they belong to."""
    for operation in body.operations:
        yield operation
        for block in operation.blocks:
            yield from every_operation(block)


def every_constant(body: Any) -> dict[str, Any]:
    """Return the constants of a function, compressed ones too, by name: those of loops as well."""
    return {
        out.name: out
        for operation in every_operation(body)
        if operation.op_type in ("const", *CONSTEXPR)
        for out in operation.outputs
    }


def is_weight(variable: Any) -> bool:
    """Say whether a constant is a weight: floats with axes, not a part of a compressed one."""
    if not dtype_name(variable).startswith("fp") or variable.rank == 0:
        return False
    users = [operation.op_type for operation in variable.child_ops]
    return not users or any(user not in CONSTEXPR for user in users)


def weights(body: Any) -> dict[str, Array]:
    """Return every weight of a function by name, compressed ones expanded."""
    return {
        name: np.asarray(constant_value(variable))
        for name, variable in every_constant(body).items()
        if is_weight(variable)
    }


def scalars(body: Any) -> dict[str, Array]:
    """Return every floating-point constant of a function that has no axes, by name."""
    return {
        name: np.asarray(variable.val)
        for name, variable in every_constant(body).items()
        if variable.op.op_type == "const" and dtype_name(variable).startswith("fp")
        if variable.rank == 0
    }


def beside(
    own: Mapping[str, Array], others: Mapping[str, Array], function: str
) -> dict[str, Array]:
    """Return those constants of FUNCTION, OTHERS, that are none of one's OWN, named behind it.

    >>> beside({"w": np.ones(1)}, {"w": np.ones(1), "v": np.ones(1)}, "decode")
    {'decode.v': array([1.])}
    """
    return {
        f"{function}.{name}": it
        for name, it in others.items()
        if name not in own or own[name].shape != it.shape or own[name].tobytes() != it.tobytes()
    }


def of_function(
    exact: Mapping[str, Array], own: Any, other: Any, function: str
) -> dict[str, Array]:
    """Return of EXACT, constants as ``beside`` names them, those of FUNCTION, whose body is OTHER, by its names.

    A constant that has the name of one of the first function's, whose body is OWN, may be another one.
    """
    mine, theirs = ({**weights(it), **scalars(it)} for it in (own, other))
    apart = beside(mine, theirs, function)
    named = {name: key if (key := f"{function}.{name}") in apart else name for name in theirs}
    return {name: exact[key] for name, key in named.items() if key in exact}
