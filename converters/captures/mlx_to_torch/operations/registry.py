"""The table of handlers: primitive -> what computes it in torch."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

THEMES: Final = (
    *("elementwise", "arrangement", "indexing", "reductions", "linear", "convolution"),
    *("layers", "recurrent", "quantized", "signal"),
)


class Call(NamedTuple):
    """One primitive as it runs.

    Attributes:
        inputs: its arrays, unsigned integers in wider dtypes unless the operation is ``raw``.
        arguments: its other arguments, sizes as numbers.
        shapes: of what it makes.
        dtypes: of what it makes.
        used: whether anything reads what it makes.
    """

    inputs: Sequence[Tensor]
    arguments: Sequence[Any]
    shapes: Sequence[Sequence[Any]]
    dtypes: Sequence[torch.dtype]
    used: Sequence[bool]


Handler = Callable[[Call], Tensor | Sequence[Tensor | None]]
Refuses = Callable[[Sequence[Any], Sequence[Any]], str | None]


class Operation(NamedTuple):
    """How a primitive is computed.

    Attributes:
        handler: computes it.
        broadcasts: whether its inputs may have smaller shapes that broadcast.
        raw: whether it reads unsigned integers as they are stored.
        refuses: says of arguments and shapes of inputs what about them is not supported.
    """

    handler: Handler
    broadcasts: bool = False
    raw: bool = False
    refuses: Refuses | None = None


_TABLE: Final[dict[str, Operation]] = {}


def elementwise(functions: Mapping[str, Callable[..., Tensor]]) -> None:
    """Register FUNCTIONS of the inputs alone, which broadcast: names of primitives -> function."""
    for names, function in functions.items():
        operation = Operation(functools.partial(_on_inputs, function), broadcasts=True)
        _TABLE.update(dict.fromkeys(names.split(), operation))


def _on_inputs(function: Callable[..., Tensor], call: Call) -> Tensor:
    return function(*call.inputs)


def primitive(names: str, **options: Any) -> Callable[[Handler], Handler]:
    """Register what is decorated as the handler of the primitives NAMES, with OPTIONS of Operation."""

    def register(handler: Handler) -> Handler:
        _TABLE.update(dict.fromkeys(names.split(), Operation(handler, **options)))
        return handler

    return register


@functools.cache
def handlers() -> Mapping[str, Operation]:
    """Return the table: primitive -> operation."""
    for theme in THEMES:
        importlib.import_module(f".{theme}", __package__)
    return _TABLE


def training() -> bool:
    """Tell whether gradients are wanted; where not, operations may differ in theirs."""
    return torch.is_grad_enabled()
