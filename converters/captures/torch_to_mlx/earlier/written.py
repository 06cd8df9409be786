"""Recordings as JSON and back: what a step calls is named, and found again where it is read."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Final, NamedTuple

import mlx.core as mx
import numpy as np
import torch

from ..dispatch import Call, Reference, caller
from ..graph import Graph, PythonCall, Step, Wrapped
from ..indexed import Places
from ..operations.registry import handlers
from ..ports import Port, Size
from ..recording.autograd.custom import Custom, Method
from ..recording.recorded import Recording

LARGEST: Final = 2**23  # bytes of constants that are kept


class UnwritableError(Exception):
    """Something has no form in JSON that gives it back as it was."""


def written(recording: Recording) -> dict[str, Any]:
    """Return RECORDING as JSON.

    Raises:
        UnwritableError: it calls a function of its own, or its constants are large.
    """
    if sum(array.nbytes for array in recording.constants.values()) > LARGEST:
        raise UnwritableError("large constants")
    return {
        "graph": _graph(recording.graph),
        "constants": {name: _array(array) for name, array in recording.constants.items()},
        **{name: _value(getattr(recording, name)) for name in _OTHERS},
    }


def read(found: Mapping[str, Any]) -> Recording:
    """Return the recording that :func:`written` made FOUND of."""
    constants = {name: _array_of(array) for name, array in found["constants"].items()}
    others = {name: _value_of(found[name]) for name in _OTHERS}
    return Recording(graph=_graph_of(found["graph"]), constants=constants, **others)


_OTHERS: Final = (
    *("ports", "names", "reads", "writes", "structure", "mode", "settings", "conditions"),
)
_ABOUT: Final = tuple(field.name for field in fields(Step) if field.name != "run")


def _graph(graph: Graph) -> list[Any]:
    return [list(graph.inputs), [_step(step) for step in graph.steps], _value(graph.output)]


def _graph_of(found: list[Any]) -> Graph:
    inputs, steps, output = found
    return Graph(tuple(inputs), tuple(map(_step_of, steps)), _value_of(output))


def _step(step: Step) -> list[Any]:
    run, about = step.run, [_value(getattr(step, name)) for name in _ABOUT]
    if isinstance(run, Call) and run.function is _function(step.operation):
        return ["call", _value(dict(run.arguments)), _value(run.dtypes), *about]
    if isinstance(run, PythonCall):
        return ["python", run.name, _value(run.arguments), *about]
    if isinstance(run, Wrapped):
        return ["graph", _graph(run.graph), _value(run.arguments), *about]
    if isinstance(run, Custom):
        methods = [run.outputs, *map(_method, run.methods)]
        return ["custom", methods, _value(run.arguments), *about]
    raise UnwritableError(step.label)


def _step_of(found: list[Any]) -> Step:
    kind, one, other, *about = found
    known = dict(zip(_ABOUT, _items_of(about), strict=True))
    run: Any
    if kind == "call":
        function = _function(known["label"].partition(" ")[0])
        run = Call(function, _value_of(one), _value_of(other))
    elif kind == "custom":
        outputs, *methods = one
        run = Custom(_value_of(other), outputs, *map(_method_of, methods))
    elif kind == "python":
        run = PythonCall(one, _value_of(other))
    else:
        run = Wrapped(_graph_of(one), _value_of(other))
    return Step(run=run, **known)


def _method(method: Method) -> list[Any]:
    constants = {name: _array(array) for name, array in method.constants.items()}
    return [_graph(method.graph), list(method.names), constants]


def _method_of(found: list[Any]) -> Method:
    graph, names, constants = found
    arrays = {name: _array_of(array) for name, array in constants.items()}
    return Method(_graph_of(graph), tuple(names), arrays)


def _function(operation: str) -> Any:
    """Return what a step of OPERATION calls, ``None`` if that has no handler."""
    known = handlers().get(operation)
    return caller(known) if known else None


def _name(dtype: Any) -> str:
    return str(dtype).rpartition(".")[2]


def _value(value: Any) -> Any:
    """Return VALUE as JSON: a list begins with its kind."""
    if value is None or isinstance(value, bool | int | str):
        return value
    for name, kind in _KINDS.items():
        if type(value) is kind.type:
            return [name, kind.to(value)]
    raise UnwritableError(type(value).__name__)


def _value_of(found: Any) -> Any:
    return _KINDS[found[0]].back(found[1]) if isinstance(found, list) else found


def _items(values: Any) -> list[Any]:
    return [_value(value) for value in values]


def _items_of(found: list[Any]) -> list[Any]:
    return [_value_of(value) for value in found]


def _array(array: mx.array) -> list[Any]:
    if array.nbytes > LARGEST:
        raise UnwritableError("a large constant")
    data = np.array(array.reshape(-1).view(mx.uint8)).tobytes()
    return [_name(array.dtype), list(array.shape), base64.b64encode(data).decode()]


def _array_of(found: list[Any]) -> mx.array:
    dtype, shape, text = found
    data = mx.array(np.frombuffer(base64.b64decode(text), np.uint8))
    return data.view(_mlx_dtype(dtype)).reshape(shape)


def _mlx_dtype(name: str) -> mx.Dtype:
    dtype: mx.Dtype = getattr(mx, "bool_" if name == "bool" else name)
    return dtype


class _Kind(NamedTuple):
    """A kind of value: its type, and the ways to JSON and back."""

    type: type
    to: Callable[[Any], Any]
    back: Callable[[Any], Any]


_KINDS: Final = {
    "float": _Kind(float, float.hex, float.fromhex),
    "list": _Kind(list, _items, _items_of),
    "tuple": _Kind(tuple, _items, lambda found: tuple(_items_of(found))),
    "dict": _Kind(
        dict,
        lambda it: [_items(pair) for pair in it.items()],
        lambda found: dict(map(_items_of, found)),
    ),
    "slice": _Kind(
        slice,
        lambda it: _items([it.start, it.stop, it.step]),
        lambda found: slice(*_items_of(found)),
    ),
    "torch": _Kind(torch.dtype, _name, lambda name: getattr(torch, name)),
    "mlx": _Kind(mx.Dtype, _name, _mlx_dtype),
    "reference": _Kind(
        Reference,
        lambda it: _items([it.name, it.dtype]),
        lambda found: Reference(*_items_of(found)),
    ),
    "port": _Kind(Port, _items, lambda found: Port(*_items_of(found))),
    "places": _Kind(Places, _items, lambda found: Places(*_items_of(found))),
    "size": _Kind(Size, _items, lambda found: Size(*_items_of(found))),
}
