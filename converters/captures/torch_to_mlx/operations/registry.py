"""The table of operations: ATen overload name -> handler, filled by the files beside this one.

A handler's parameters are named as in the operation's schema, in any order (a trailing underscore
avoids a Python builtin: ``input_`` is the schema's ``input``). A parameter called ``dtype`` receives
the MLX dtype of the result, whatever the schema says. What a handler does not accept must keep its
default in the graph, or the operation counts as unsupported (see ``dispatch``); so does a value that is
not among those that the parameter's annotation, a ``Literal``, names.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, Literal, NamedTuple, TypeVar

import torch

from .....errors import BadInputError

Promotion = Literal["result", "operands", "none"]
Handler = TypeVar("Handler", bound=Callable[..., Any])

THEMES: Final = (
    "arrangement.bags",
    "arrangement.counting",
    "arrangement.indexing",
    "arrangement.joining",
    "arrangement.padding",
    "arrangement.reducing",
    "arrangement.scattering",
    "arrangement.shapes",
    "arrangement.sorting",
    "distances",
    "elementwise.activations",
    "elementwise.arithmetic",
    "elementwise.bessel",
    "elementwise.comparisons",
    "elementwise.counts",
    "elementwise.creation",
    "elementwise.distributions",
    "elementwise.gammas",
    "elementwise.kinks",
    "elementwise.randomness",
    "elementwise.special",
    "layers.attention",
    "layers.convolution",
    "layers.experts",
    "layers.fused",
    "layers.linear",
    "layers.losses",
    "layers.maxima",
    "layers.normalization",
    "layers.pooling",
    "layers.resampling",
    "layers.sampling",
    "linalg.factorizations",
    "linalg.solutions",
    "ranks",
    "recurrent.ctc",
    "recurrent.layers",
    "recurrent.packed",
    "recurrent.deltas",
    "recurrent.scans",
    "reductions",
    "signal.fourier",
    "signal.windows",
)
SIZES: Final = frozenset({"aten.sym_size.int", "aten.sym_numel.default"})  # need no handler


class Operation(NamedTuple):
    """A handler and what its tensor operands are cast to before it runs.

    Attributes:
        function: the handler.
        promote: ``result``, the dtype of the node's result; ``operands``, torch's common type of
            the operands (comparisons); ``none``, nothing.
        arity: where set, the handler takes that many of the schema's first arguments by position.
    """

    function: Callable[..., Any]
    promote: Promotion
    arity: int | None = None


_OPERATIONS: dict[str, Operation] = {}
MAKERS: Final[dict[Callable[..., Any], Callable[..., Callable[..., Any]]]] = {}


def made_by(maker: Callable[..., Callable[..., Any]]) -> Callable[[Handler], Handler]:
    """Let bound calls of the decorated handler run what MAKER returns for their settings, found out once.

    MAKER takes those of the handler's parameters that are no arrays; what it returns takes the others, by name.
    """

    def mark(handler: Handler) -> Handler:
        MAKERS[handler] = maker
        return handler

    return mark


def operation(*names: str, promote: Promotion = "none") -> Callable[[Handler], Handler]:
    """Register the decorated handler under NAMES, such as ``add.Tensor`` (of ``aten``)."""

    def register(function: Handler) -> Handler:
        _OPERATIONS.update((qualified(name), Operation(function, promote)) for name in names)
        return function

    return register


def register(
    table: Mapping[str, Callable[..., Any]],
    promote: Promotion = "none",
    arity: int | None = None,
) -> None:
    """Register a table of handlers by name; several names may share a line, split by spaces."""
    for names, function in table.items():
        for name in names.split():
            _OPERATIONS[qualified(name)] = Operation(function, promote, arity)


def qualified(name: str) -> str:
    """Return NAME with namespace and overload; ``::`` parts a namespace from a name.

    >>> qualified("exp"), qualified("add.Tensor"), qualified("aten.mm.default"), qualified("my::op")
    ('aten.exp.default', 'aten.add.Tensor', 'aten.mm.default', 'my.op.default')
    """
    library, parted, rest = name.partition("::")
    if parted:
        return f"{library}.{rest}" if "." in rest else f"{library}.{rest}.default"
    name = name if "." in name else f"{name}.default"
    return name if name.count(".") == 2 else f"aten.{name}"


@cache
def _load() -> None:
    """Import the files of THEMES, which register their handlers."""
    for theme in THEMES:
        importlib.import_module(f".{theme}", __package__)


def handlers() -> Mapping[str, Operation]:
    """Return the whole table: overload name (``aten.linear.default``) -> operation."""
    _load()
    return _OPERATIONS


def register_op(name: str, handler: Callable[..., Any], promote: Promotion = "none") -> None:
    """Register HANDLER for the operation called NAME, for all captures made from now on.

    Args:
        name: such as ``mylib::scale`` or ``mylib.scale.default``; without a library it is ``aten``'s.
        handler: takes MLX arrays and numbers by the names of the operation's schema (``input_`` for
            ``input``), those that may keep their defaults left out; returns arrays of the shapes that
            torch has. Its gradient is that of the MLX operations in it.
        promote: what tensors are cast to before: ``result``, the dtype of the result; ``operands``,
            torch's common type of the operands; ``none``, nothing.

    Raises:
        BadInputError: torch knows no such operation, or HANDLER takes what its schema has not.
    """
    called = qualified(name)
    schema = _schema(called)
    known = {argument.name.rstrip("_") for argument in schema.arguments} | {"dtype"}
    parameters = inspect.signature(handler).parameters.values()
    unknown = [
        p.name
        for p in parameters
        if p.kind is not p.VAR_KEYWORD and p.name.rstrip("_") not in known
    ]
    if unknown:
        raise BadInputError(
            f"{called} has no argument {', '.join(unknown)}: its schema is {schema}"
        )
    handlers()  # so that it comes after those that there are
    _OPERATIONS[called] = Operation(handler, promote)


def _schema(name: str) -> Any:
    found: Any = torch.ops
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise BadInputError(
            f"torch has no operation {name}: import what defines it before registering a handler"
        ) from error
    return found._schema
