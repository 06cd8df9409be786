"""From a graph node to a call: arguments by schema name, and the one rule of dtypes.

The rule: the result has the dtype that torch recorded for the node. Operands are cast before the
handler runs, to that dtype (``promote="result"``) or, where the result is boolean whatever the
operands are, to torch's common type of the operands (``promote="operands"``). No handler promotes.
Whatever is not floating carries no gradient: MLX would try to differentiate indices.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from keyword import iskeyword
from types import CodeType
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import mlx.core as mx
import torch
from torch.fx import Node

from ....errors import MismatchError
from .dtypes import cast, mlx_dtype
from .operations.registry import MAKERS, Operation

Environment = Mapping[str, Any]

# Say where and how torch stores a result, or repeat what the result's dtype says.
_STORAGE: Final = frozenset(
    [
        "copy",
        "cudnn_enable",
        "cudnn_enabled",
        "device",
        "dtype",
        "generator",
        "half_to_float",
        "implicit",
        "layout",
        "memory_format",
        "non_blocking",
        "out_int32",
        "pin_memory",
    ]
)
_NOT_PROMOTED: Final = frozenset({"condition", "mask"})
LAST: Final = "last"  # in a node's meta, and a handler's parameter: it takes and gives channels as the last axis


@dataclass(frozen=True, slots=True)
class Reference:
    """A value of the environment, cast to DTYPE where one is given."""

    name: str
    dtype: mx.Dtype | None = None


def overload(node: Node) -> str:
    """Return the name under which NODE's operation is registered, such as ``aten.add.Tensor``."""
    return str(node.target)


def _schema_names(node: Node) -> list[str]:
    return [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]


def schema_arguments(node: Node) -> dict[str, Any]:
    """Return the arguments given in the graph by the names of the operation's schema."""
    return {**dict(zip(_schema_names(node), node.args, strict=False)), **node.kwargs}


def _accepted(node: Node, operation: Operation) -> tuple[dict[str, str], bool]:
    """Return schema name -> parameter name, and whether the handler takes any other."""
    if operation.arity is not None:
        names = _schema_names(node)[: operation.arity]
        return dict(zip(names, names, strict=True)), False
    parameters = inspect.signature(operation.function).parameters.values()
    named = {p.name.rstrip("_"): p.name for p in parameters if p.kind is not p.VAR_KEYWORD}
    return named, any(p.kind is p.VAR_KEYWORD for p in parameters)


@cache
def _literals(function: Callable[..., Any]) -> dict[str, tuple[Any, ...]]:
    """Return parameter -> the values that a handler's ``Literal`` of it names."""
    hints = get_type_hints(function) if "Literal" in str(inspect.signature(function)) else {}
    return {
        name.rstrip("_"): get_args(hint)
        for name, hint in hints.items()
        if get_origin(hint) is Literal
    }


def refused_arguments(node: Node, operation: Operation) -> dict[str, Any]:
    """Return the arguments that the handler does not accept and that are not at their default.

    Nor does it accept a value that is not among those of the parameter's ``Literal``.
    """
    accepted, open_ended = _accepted(node, operation)
    if open_ended:
        return {}
    given = schema_arguments(node)
    known = _literals(operation.function) if operation.arity is None else {}
    wrong = {n: given[n] for n, values in known.items() if n in given and given[n] not in values}
    return wrong | _unknown_arguments(node, accepted)


def _unknown_arguments(node: Node, accepted: Mapping[str, str]) -> dict[str, Any]:
    schema = {a.name: a for a in node.target._schema.arguments}  # type: ignore[union-attr]
    return {
        name: value
        for name, value in schema_arguments(node).items()
        if name not in accepted
        and name not in _STORAGE
        and not (schema[name].has_default_value() and schema[name].default_value == value)
    }


@dataclass(frozen=True, slots=True)
class Positional:
    """A handler without names of its own, called with arguments by the schema's names, in its order."""

    handler: Callable[..., Any]

    def __call__(self, **given: Any) -> Any:
        """Call the handler."""
        return self.handler(*given.values())


@cache
def caller(operation: Operation) -> Callable[..., Any]:
    """Return OPERATION's handler as a function of arguments by name, in the schema's order."""
    return operation.function if operation.arity is None else Positional(operation.function)


def _dtypes(value: Any) -> Any:
    """Return the MLX dtype of a recorded value, a tuple or list of them, or ``None`` for what is no tensor."""
    if isinstance(value, torch.Tensor):
        return mlx_dtype(value.dtype)
    if isinstance(value, list):  # as many parts as sizes make
        return [*map(_dtypes, value)]
    return tuple(map(_dtypes, value)) if isinstance(value, tuple) else None


def _recorded(argument: Any) -> Any:
    """Return what torch recorded for an operand, with symbolic numbers as plain ones."""
    value = argument.meta["val"] if isinstance(argument, Node) else argument
    if isinstance(value, torch.SymInt):
        return 1
    return 1.0 if isinstance(value, torch.SymFloat) else value


def _common(node: Node, operation: Operation) -> mx.Dtype | None:
    """Return the dtype to which the operands of NODE are cast."""
    if operation.promote == "none":
        return None
    if operation.promote == "result":
        recorded = _dtypes(node.meta["val"])
        return None if isinstance(recorded, tuple | list) else recorded
    arguments = schema_arguments(node)
    pair = [_recorded(arguments[name]) for name in ("self", "other")]
    return mlx_dtype(torch.result_type(*pair))


def _loses_a_part(node: Node, dtype: mx.Dtype | None) -> bool:
    """Tell whether NODE is of complex numbers and DTYPE is not: a length or spread of them is real."""
    value = node.meta.get("val")
    complex_ = isinstance(value, torch.Tensor) and value.is_complex()
    return complex_ and dtype is not None and dtype != mx.complex64


def template(argument: Any, dtype: mx.Dtype | None = None) -> Any:
    """Return ARGUMENT with nodes replaced by references."""
    if isinstance(argument, Node):
        return Reference(argument.name, None if _loses_a_part(argument, dtype) else dtype)
    if isinstance(argument, list | tuple):
        return [template(item, dtype) for item in argument]
    if isinstance(argument, slice):
        return slice(*[template(x) for x in (argument.start, argument.stop, argument.step)])
    return argument


def resolve(argument: Any, values: Environment) -> Any:
    """Return ARGUMENT with references replaced by their values."""
    if isinstance(argument, Reference):
        return cast(values[argument.name], argument.dtype)
    if isinstance(argument, list):
        return [resolve(item, values) for item in argument]
    if isinstance(argument, slice):
        return slice(*[resolve(x, values) for x in (argument.start, argument.stop, argument.step)])
    return argument


def references(argument: Any) -> Iterator[str]:
    """Yield the names of the values of the graph that ARGUMENT holds."""
    if isinstance(argument, Reference):
        yield argument.name
    parts = argument if isinstance(argument, list) else []
    if isinstance(argument, slice):
        parts = [argument.start, argument.stop, argument.step]
    for part in parts:
        yield from references(part)


def closed(values: Environment) -> dict[str, mx.array]:
    """Return those of VALUES that are empty, closed to gradients: see ``_conform``."""
    arrays = ((name, value) for name, value in values.items() if isinstance(value, mx.array))
    return {name: mx.stop_gradient(array) for name, array in arrays if not array.size}


def _conform(value: Any, dtypes: Any) -> Any:
    """Cast results to the recorded dtypes.

    An empty result has no gradient to give; MLX divides by its size where it would look for one.

    Raises:
        MismatchError: there are more parts than recorded, or fewer.
    """
    if isinstance(dtypes, list) and len(value) != len(dtypes):
        parts = f"{len(value)} parts of an array for these sizes, and {len(dtypes)} for the example"
        raise MismatchError(
            "the inputs do not fit the captured module",
            [f"the module's code makes {parts}: capture it again with such sizes"],
        )
    if isinstance(dtypes, tuple | list):
        return tuple(_conform(v, d) for v, d in zip(value, dtypes, strict=False))
    if dtypes is None or value is None:
        return value
    flows = mx.issubdtype(dtypes, mx.inexact) and value.size
    return cast(value if flows else mx.stop_gradient(value), dtypes)


@dataclass(frozen=True)
class Call:
    """A handler bound to a node's arguments."""

    function: Callable[..., Any]
    arguments: Mapping[str, Any]
    dtypes: Any = None

    def __post_init__(self) -> None:
        """Write the call down as Python would have it, so that a run looks at no argument that stays."""
        inexact = isinstance(self.dtypes, mx.Dtype) and mx.issubdtype(self.dtypes, mx.inexact)
        object.__setattr__(self, "_called", _called(*_prepared(self.function, self.arguments)))
        object.__setattr__(self, "_float", self.dtypes if inexact else None)

    def __call__(self, values: Environment) -> Any:
        """Run the handler on VALUES and cast its results to the recorded dtypes."""
        result = self._called(values)  # type: ignore[attr-defined]
        wanted = self._float  # type: ignore[attr-defined]
        if wanted is not None and isinstance(result, mx.array) and result.dtype == wanted:
            return result if result.size else mx.stop_gradient(result)
        return _conform(result, self.dtypes)


def _prepared(
    function: Callable[..., Any], arguments: Mapping[str, Any]
) -> tuple[Callable[..., Any], Mapping[str, Any]]:
    """Return what FUNCTION prepares of the settings among ARGUMENTS, and the others; both as they are if it cannot."""
    maker = MAKERS.get(function)
    names = inspect.signature(maker).parameters if maker else ()
    settings = {name: value for name, value in arguments.items() if name in names}
    if maker is None or any(references([*settings.values()])):
        return function, arguments
    return maker(**settings), {n: it for n, it in arguments.items() if n not in names}


def _called(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the function of values of the graph that calls FUNCTION with ARGUMENTS, by name in their order."""
    handler = function.handler if isinstance(function, Positional) else function
    held: dict[str, Any] = {"handler": handler, "cast": cast, "slice": slice}
    given = [(name, _expression(argument, held)) for name, argument in arguments.items()]
    if handler is function:
        written = [
            f"**{{{name!r}: {it}}}" if iskeyword(name) else f"{name}={it}" for name, it in given
        ]
    else:
        written = [it for _, it in given]
    called: Callable[..., Any] = eval(  # noqa: S307  (our own text)
        _code(f"lambda values: handler({', '.join(written)})"), held
    )
    return called


def _expression(argument: Any, held: dict[str, Any]) -> str:
    """Return what ``resolve`` makes of ARGUMENT as an expression; what is no name in it is HELD."""
    if isinstance(argument, Reference):
        read = f"values[{_expression(argument.name, held)}]"
        return (
            read if argument.dtype is None else f"cast({read}, {_expression(argument.dtype, held)})"
        )
    if any(references(argument)) and isinstance(argument, list):
        return f"[{', '.join(_expression(it, held) for it in argument)}]"
    if any(references(argument)):
        parts = (argument.start, argument.stop, argument.step)
        return f"slice({', '.join(_expression(it, held) for it in parts)})"
    name = f"held{len(held)}"
    held[name] = argument
    return name


@cache
def _code(source: str) -> CodeType:
    return compile(source, "<call of a captured operation>", "eval")


def bind(node: Node, operation: Operation) -> Call:
    """Bind OPERATION to the arguments of NODE."""
    accepted, open_ended = _accepted(node, operation)
    common, dtypes = _common(node, operation), _dtypes(node.meta.get("val"))
    arguments = {}
    for name, value in schema_arguments(node).items():
        if name in accepted or (open_ended and name not in _STORAGE):
            promoted = None if name in _NOT_PROMOTED else common
            arguments[accepted.get(name, name)] = template(value, promoted)
    if "dtype" in accepted:
        arguments["dtype"] = dtypes
    if node.meta.get(LAST):
        arguments[LAST] = True
    return Call(caller(operation), arguments, dtypes)
