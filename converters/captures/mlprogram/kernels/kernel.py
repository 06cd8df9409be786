"""What a kernel is: a function of MIL's input names, whose annotations say how it wants each one.

``Tensor`` gets a torch tensor, ``Tensors`` a list of them; ``int``, ``float``, ``bool``, ``str`` and
tuples of them get plain Python values; so do ``NAMED`` inputs without an annotation, as a ``lambda`` has
them. Tensors of floats arrive in float32, integers in int32.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from torch import Tensor

Tensors = list[Tensor]
Ints = tuple[int, ...]
Bools = tuple[bool, ...]
Function = Callable[..., Any]


def scalar(value: Any) -> Any:
    """Return the Python number in an array or tensor of one element.

    >>> scalar(np.float16(0.5))
    0.5
    """
    return value.item() if hasattr(value, "item") else value


def entries(value: Any) -> list[Any]:
    """Return the elements of an array, tensor or number as a flat list."""
    if isinstance(value, Tensor):
        return list(value.reshape(-1).tolist())
    return list(np.asarray(value).reshape(-1).tolist())


PLAIN: Final[Mapping[str, Callable[[Any], Any]]] = {
    "int": lambda value: int(scalar(value)),
    "float": lambda value: float(scalar(value)),
    "bool": lambda value: bool(scalar(value)),
    "str": lambda value: str(scalar(value)),
    "Ints": lambda value: tuple(int(entry) for entry in entries(value)),
    "Bools": lambda value: tuple(bool(entry) for entry in entries(value)),
}


NAMED: Final[Mapping[str, str]] = {
    name: kind
    for kind, names in {
        "int": "axis downscale_factor index size upscale_factor",
        "float": "alpha beta epsilon k",
        "bool": "ascending",
        "str": "equation",
        "Ints": "axes indices perm reps shape",
    }.items()
    for name in names.split()
}


class Kernel(NamedTuple):
    """A function, the inputs that it knows, and the conversions that its annotations ask for."""

    function: Function
    inputs: frozenset[str]
    plain: Mapping[str, Callable[[Any], Any]]

    def __call__(self, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Apply the function to INPUTS and return its outputs as a tuple."""
        keep = self.plain
        arguments = {k: keep[k](v) if k in keep else v for k, v in inputs.items()}
        outputs = self.function(**arguments)
        several = type(outputs) in (list, tuple)  # a list of tensors is a tuple of its own kind
        return tuple(outputs) if several else (outputs,)


def kernel(function: Function) -> Kernel:
    """Read what FUNCTION wants of its inputs.

    >>> def scaled(x: Tensor, axis: int, factor: float | None = None): ...
    >>> sorted(kernel(scaled).plain)
    ['axis', 'factor']
    """
    parameters, stated = inspect.signature(function).parameters, function.__annotations__
    kinds = {
        name: str(stated.get(name, NAMED.get(name))).removesuffix(" | None") for name in parameters
    }
    plain = {name: PLAIN[kind] for name, kind in kinds.items() if kind in PLAIN}
    return Kernel(function, frozenset(kinds), plain)
