"""Arithmetic, comparisons and activations against torch, operation by operation."""

from __future__ import annotations

import torch
from torch.nn import functional

INTEGERS = torch.tensor([[-7, -3, 0], [2, 5, 9]])
DIVISORS = torch.tensor([[2, -2, 3], [-4, 5, -6]])
BYTES = torch.tensor([3, 200, 255], dtype=torch.uint8)
BOOLEANS = torch.tensor([[True, False, True], [False, False, True]])
UNARY = [
    "abs", "neg", "square", "sign", "floor", "ceil", "round", "trunc", "frac", "exp", "expm1", "exp2",
    "sin", "cos", "tan", "sinh", "cosh", "atan", "asinh", "erf", "erfc", "sigmoid", "tanh", "relu",
    "deg2rad", "rad2deg", "isnan", "isinf", "isfinite", "signbit", "logical_not", "positive",
]  # fmt: skip
POSITIVE = ["log", "log1p", "log2", "log10", "sqrt", "rsqrt", "reciprocal"]
WITHIN_ONE = ["asin", "acos", "atanh", "erfinv"]
OF_INTEGERS = [
    "abs",
    "neg",
    "exp",
    "sqrt",
    "sin",
    "floor",
    "round",
    "sign",
    "relu",
    "square",
    "sigmoid",
]
ACTIVATIONS = {
    "gelu": functional.gelu,
    "gelu by tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "mish": functional.mish,
    "elu": lambda x: functional.elu(x, 0.7),
    "celu": lambda x: functional.celu(x, 1.3),
    "selu": functional.selu,
    "rrelu": functional.rrelu,
    "leaky_relu": lambda x: functional.leaky_relu(x, 0.2),
    "relu6": lambda x: functional.relu6(4 * x),
    "hardtanh": lambda x: functional.hardtanh(x, -0.5, 0.7),
    "hardswish": lambda x: functional.hardswish(3 * x),
    "hardsigmoid": lambda x: functional.hardsigmoid(3 * x),
    "hardshrink": functional.hardshrink,
    "softshrink": functional.softshrink,
    "softplus": lambda x: functional.softplus(x, 2.0, 3.0),
    "softsign": functional.softsign,
    "logsigmoid": functional.logsigmoid,
    "tanhshrink": functional.tanhshrink,
    "threshold": lambda x: functional.threshold(x, 0.1, 20.0),
    "glu": lambda x: functional.glu(x, -1),
    "logit": lambda x: torch.logit(torch.sigmoid(x), 0.1),
}
BINARY = {
    "add with alpha": lambda a, b: torch.add(a, b, alpha=3),
    "sub with alpha": lambda a, b: torch.sub(a, b, alpha=2),
    "rsub": lambda a, b: 1.5 - a * b,
    "mul": torch.mul,
    "div": torch.div,
    "div floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "div trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "where": lambda a, b: torch.where(a > b, a, b),
    "lt": torch.lt,
    "eq": torch.eq,
}
FLOATING = {
    "pow": lambda a, b: torch.pow(a.abs() + 0.1, b),
    "atan2": torch.atan2,
    "logaddexp": torch.logaddexp,
    "hypot": torch.hypot,
    "copysign": torch.copysign,
    "lerp": lambda a, b: torch.lerp(a, b, 0.3),
    "addcmul": lambda a, b: torch.addcmul(a, a, b, value=0.5),
    "addcdiv": lambda a, b: torch.addcdiv(a, a, b.abs() + 1, value=0.5),
    "xlogy": lambda a, b: torch.xlogy(a.relu(), b.abs() + 0.1),
    "clamp by tensors": lambda a, b: torch.clamp(a, -b.abs(), b.abs()),
}
SCALAR = {
    "square by power": lambda x: x**2,
    "cube": lambda x: x**3,
    "power": lambda x: (x.abs() + 0.1) ** 1.7,
    "two to the power": lambda x: 2.0**x,
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "clamp below": lambda x: x.clamp(min=0.1),
    "clamp above": lambda x: x.clamp_max(0.1),
    "reversed division": lambda x: 1 / (x.abs() + 1),
    "round to hundredths": lambda x: torch.round(100 * x, decimals=2),
    "round to hundreds": lambda x: torch.round(1000 * x, decimals=-2),
    "round to ones": lambda x: torch.round(10 * x, decimals=0),
    "masked_fill": lambda x: x.masked_fill(x > 0, -torch.inf),
    "where scalar": lambda x: torch.where(x > 0, x, 0.5),
    "where scalars": lambda x: torch.where(x > 0, 1.0, 0.0),
    "nan_to_num": lambda x: torch.nan_to_num(x.masked_fill(x > 1, torch.inf), posinf=3.0),
    "isclose": lambda x: torch.isclose(x, x + 1e-9),
    "to bfloat16": lambda x: x.to(torch.bfloat16).float(),
    "to int": lambda x: (3 * x).to(torch.int64),
}
PROMOTIONS = {
    "int + float": lambda a: a + 0.5,
    "int * True": lambda a: a * True,
    "int / int": lambda a: a / 2,
    "int < float": lambda a: a < 0.5,
    "int == float": lambda a: a == 2.0,
    "int + float tensor": lambda a: a + torch.ones(3),
    "int + float number tensor": lambda a: a + torch.tensor(0.5),
    "int32 + int64": lambda a: a.int() + a,
    "bool + bool": lambda a: (a > 0) + (a > 3),
    "bool * float": lambda a: (a > 0) * 1.5,
    "1 - bool as float": lambda a: (1.0 - (a > 0).float()) * torch.finfo(torch.float32).min,
    "half * float number": lambda a: a.half() * 1.5,
    "bfloat16 + float number tensor": lambda a: a.bfloat16() + torch.tensor(0.5),
    "half + float": lambda a: a.half() + torch.ones(3),
    "int ** int": lambda a: a**2,
    "where int else float": lambda a: torch.where(a > 0, a, 0.5),
    "maximum of int and int32": lambda a: torch.maximum(a, a.int()),
    "clamp of ints": lambda a: a.clamp(-2, 4),
    "float64": lambda a: a.double() * 0.1,
}


SHAPES = [(2, 3), (), (4, 1, 3)]
PAIRS = [((2, 3), (2, 3)), ((2, 3), (3,)), ((), (2, 1)), ((), ())]


def test_the_gradient_of_a_power_of_large_numbers_is_as_exact_as_torchs(agree):
    large = torch.tensor([1e-3, 1e6, 1e20, 1e8]).repeat(
        16
    )  # what is left over, torch computes in float64
    agree({f"{e}": (lambda x, e=e: x**e, large) for e in (1.3, 1.7, 0.3, -0.7)}, rtol=5e-8)


def test_unary_functions(agree):
    agree({f"{name} of {s}": (getattr(torch, name), s) for name in UNARY for s in SHAPES})


def test_functions_of_positive_numbers(agree):
    x = torch.rand(3, 4) + 0.3
    agree({name: (getattr(torch, name), x) for name in POSITIVE})


def test_functions_on_the_unit_interval(agree):
    x = torch.linspace(-0.9, 0.9, 7)
    agree({name: (getattr(torch, name), x) for name in WITHIN_ONE}, rtol=1e-5)


def test_functions_of_integers(agree):
    agree({name: (getattr(torch, name), INTEGERS.abs()) for name in OF_INTEGERS})


def test_activations(agree):
    agree({name: (function, (3, 8)) for name, function in ACTIVATIONS.items()}, rtol=4e-6)


def test_binary_functions_broadcast(agree):
    functions = BINARY | FLOATING
    agree({f"{name} of {p}": (f, *p) for name, f in functions.items() for p in PAIRS})
    agree({"floor_divide": (torch.floor_divide, (2, 3), (3,))}, gradients=False)


def test_binary_functions_of_integers(agree):
    functions = BINARY | {"floor_divide": torch.floor_divide}
    agree({name: (function, INTEGERS, DIVISORS) for name, function in functions.items()})


def test_functions_with_numbers(agree):
    agree({name: (function, (3, 5)) for name, function in SCALAR.items()})


def test_operands_are_promoted_as_in_torch(agree):
    agree({name: (function, INTEGERS) for name, function in PROMOTIONS.items()}, rtol=1e-7)


def test_logic_shifts_and_membership(agree):
    cases = {}
    for name in ("and", "or", "xor"):
        bitwise, logical = (getattr(torch, f"{kind}_{name}") for kind in ("bitwise", "logical"))
        cases[f"{name} of booleans"] = (bitwise, BOOLEANS, ~BOOLEANS)
        cases[f"{name} of integers"] = (bitwise, INTEGERS, DIVISORS)
        cases[f"logical {name}"] = (logical, BOOLEANS, INTEGERS)
    cases["shifts"] = (lambda a: (a << 1, a >> 2, ~a), INTEGERS)
    cases["not"] = (lambda a: ~a, BOOLEANS)
    cases["isin"] = (lambda a: torch.isin(a, torch.tensor([2, 9, -3])), INTEGERS)
    cases["bytes wrap around"] = (lambda a: a + 100, BYTES)
    agree(cases)


def test_prelu_has_one_slope_per_channel(agree):
    agree(
        {
            "channels": (functional.prelu, (2, 3, 4), (3,)),
            "all": (functional.prelu, (2, 3, 4), (1,)),
        }
    )
