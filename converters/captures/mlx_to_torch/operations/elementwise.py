"""Primitives that work element by element."""

from __future__ import annotations

import torch
from torch import Tensor

from .registry import Call, elementwise, primitive, training


def _maximum(a: Tensor, b: Tensor) -> Tensor:
    """Give all of the gradient to B where both are equal, as MLX does; torch divides it."""
    if not training():
        return torch.maximum(a, b)
    return torch.where((a > b) | _not_a_number(a), a, b)


def _minimum(a: Tensor, b: Tensor) -> Tensor:
    if not training():
        return torch.minimum(a, b)
    return torch.where((a < b) | _not_a_number(a), a, b)


def _not_a_number(x: Tensor) -> Tensor:
    return x != x  # noqa: PLR0124  # isnan has no form in Core ML


def _floor_divide(a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, b, rounding_mode="floor")


def _log_add_exp(a: Tensor, b: Tensor) -> Tensor:
    return torch.logaddexp(a, b)


def _round(x: Tensor) -> Tensor:
    return torch.round(x) if x.is_floating_point() else x


elementwise(
    {
        "Abs": torch.abs,
        "Add": torch.add,
        "ArcCos": torch.acos,
        "ArcCosh": torch.acosh,
        "ArcSin": torch.asin,
        "ArcSinh": torch.asinh,
        "ArcTan": torch.atan,
        "ArcTan2": torch.atan2,
        "ArcTanh": torch.atanh,
        "Ceil": torch.ceil,
        "Conjugate": torch.conj,
        "Full": lambda x: x,
        "Cos": torch.cos,
        "Cosh": torch.cosh,
        "Divide": torch.div,
        "Erf": torch.erf,
        "ErfInv": torch.erfinv,
        "Exp": torch.exp,
        "Expm1": torch.expm1,
        "Floor": torch.floor,
        "FloorDivide": _floor_divide,
        "Greater": torch.gt,
        "GreaterEqual": torch.ge,
        "Imag": torch.imag,
        "Less": torch.lt,
        "LessEqual": torch.le,
        "Log1p": torch.log1p,
        "LogAddExp": _log_add_exp,
        "LogicalAnd": torch.logical_and,
        "LogicalNot": torch.logical_not,
        "LogicalOr": torch.logical_or,
        "Maximum": _maximum,
        "Minimum": _minimum,
        "Multiply": torch.mul,
        "Negative": torch.neg,
        "NotEqual": torch.ne,
        "Power": torch.pow,
        "Real": torch.real,
        "Remainder": torch.remainder,
        "Round": _round,
        "Select": torch.where,
        "Sigmoid": torch.sigmoid,
        "Sign": torch.sign,
        "Sin": torch.sin,
        "Sinh": torch.sinh,
        "Square": torch.square,
        "StopGradient": torch.detach,
        "Subtract": torch.sub,
        "Tan": torch.tan,
        "Tanh": torch.tanh,
    }
)
LOGARITHMS = (torch.log2, torch.log10, torch.log)
LOGICAL = (torch.logical_and, torch.logical_or, torch.logical_xor)
BITWISE = (
    *(torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor),
    *(torch.bitwise_left_shift, torch.bitwise_right_shift),
)


@primitive("Log")
def _log(call: Call) -> Tensor:
    return LOGARITHMS[call.arguments[0]](call.inputs[0])


@primitive("Sqrt")
def _sqrt(call: Call) -> Tensor:
    return (torch.rsqrt if call.arguments[0] else torch.sqrt)(call.inputs[0])


@primitive("BitwiseBinary", broadcasts=True)
def _bitwise(call: Call) -> Tensor:
    table = LOGICAL if call.dtypes[0] == torch.bool else BITWISE
    return table[call.arguments[0]](*call.inputs)


@primitive("Equal", broadcasts=True)
def _equal(call: Call) -> Tensor:
    a, b = call.inputs
    both = _not_a_number(a) & _not_a_number(b)
    return (a == b) | both if call.arguments[0] else a == b


@primitive("DivMod", broadcasts=True)
def _divmod(call: Call) -> tuple[Tensor, Tensor]:
    a, b = call.inputs
    return _floor_divide(a, b), torch.remainder(a, b).detach()  # MLX has no gradient here


@primitive("AsType")
def _as_type(call: Call) -> Tensor:
    x = call.inputs[0]  # every result is cast to its dtype
    return torch.real(x) if x.is_complex() and not call.dtypes[0].is_complex else x


@primitive("View", refuses=lambda arguments, _: _unlike(arguments[0]))
def _view(call: Call) -> Tensor:
    wanted = {"int32": torch.int32, "float32": torch.float32}
    return call.inputs[0].view(wanted[call.arguments[0]])


def _unlike(dtype: str) -> str | None:
    return None if dtype in ("int32", "float32") else f"bits read as {dtype}"


@primitive("Number")
def _number(call: Call) -> Tensor:
    size, inverse = call.arguments
    number = torch.scalar_tensor(size, dtype=torch.float32 if inverse else torch.int64)
    return 1 / number if inverse else number
