"""Arguments of a module: positional ones by their names, nested ones leaf by leaf, as ``states.0``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from .....errors import BadInputError, MismatchError

Inputs = Mapping[str, Any] | Sequence[Any] | Any


def by_name(module: torch.nn.Module, inputs: Inputs) -> dict[str, Any]:
    """Return INPUTS by name, in the order in which MODULE's ``forward`` has its parameters.

    Args:
        module: whose arguments they are.
        inputs: by name, in order as a tuple or list, or one tensor or array alone.

    Raises:
        BadInputError: there are more than ``forward`` takes in order.
    """
    parameters = inspect.signature(module.forward).parameters
    if isinstance(inputs, Mapping):
        places = {name: place for place, name in enumerate(parameters)}
        return dict(sorted(inputs.items(), key=lambda item: places.get(item[0], len(places))))
    given = inputs if isinstance(inputs, tuple | list) else (inputs,)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [name for name, parameter in parameters.items() if parameter.kind in kinds]
    if len(given) > len(names):
        raise BadInputError(
            f"{len(given)} inputs, but {type(module).__name__}.forward takes {len(names)} in order: "
            f"{', '.join(names)}"
        )
    return dict(zip(names, given, strict=False))


def parts_of(value: Any) -> list[tuple[str, Any]] | None:
    """Return what the container VALUE holds, by key or position; ``None`` if it is a leaf."""
    if isinstance(value, Mapping):
        return [(str(key), below) for key, below in value.items()]
    if isinstance(value, tuple | list):
        return [(str(place), below) for place, below in enumerate(value)]
    return None


def leaves(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return path -> leaf of INPUTS.

    >>> leaves({"x": 1, "states": [2, {"h": 3}]})
    {'x': 1, 'states.0': 2, 'states.1.h': 3}
    """
    return dict(_walk(inputs.items()))


def _walk(items: Iterable[tuple[str, Any]], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in items:
        below = parts_of(value)
        if below is None:
            yield prefix + name, value
        else:
            yield from _walk(below, f"{prefix}{name}.")


def mapped(function: Callable[[str, Any], Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return INPUTS with every leaf replaced by FUNCTION of its path and itself."""
    return {name: _mapped(function, name, value) for name, value in inputs.items()}


def _mapped(function: Callable[[str, Any], Any], path: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _mapped(function, f"{path}.{key}", below) for key, below in value.items()}
    if isinstance(value, tuple | list):
        below = [_mapped(function, f"{path}.{i}", below) for i, below in enumerate(value)]
        named = hasattr(value, "_fields")
        return type(value)(*below) if named else type(value)(below)
    return function(path, value)


def fed(names: Iterable[str], given: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return path -> array of what a captured module is called with.

    Args:
        names: paths of the inputs that it has, in order.
        given: arguments in order.
        named: arguments by name.

    Raises:
        MismatchError: there are too many, or one is given twice.
    """
    order = list(dict.fromkeys(name.partition(".")[0] for name in names))
    twice = sorted(set(order[: len(given)]) & set(named))
    problems = [f"{name} is given twice" for name in twice]
    if len(given) > len(order):
        problems.append(f"{len(given)} are given in order, there are {', '.join(order)}")
    if problems:
        raise MismatchError("the inputs do not fit the captured module", problems)
    return leaves({**dict(zip(order, given, strict=False)), **named})
