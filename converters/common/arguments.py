"""Arguments held against their annotations: a wrong kind is refused before it means something else."""

from __future__ import annotations

import collections.abc
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from inspect import signature
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import (
    Any,
    Final,
    Literal,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from ...errors import BadInputError

NUMBERS: Final[Mapping[object, type]] = {int: Integral, float: Real}
WORDS: Final[Mapping[object, str]] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Path: "a path",
    type(None): "None",
    collections.abc.Callable: "a function",
    collections.abc.Mapping: "a mapping",
    collections.abc.Collection: "a list",
    collections.abc.Iterable: "a list",
}
SHOWN: Final = 60  # letters of a value in a message
Given = ParamSpec("Given")
Made = TypeVar("Made")


def require_one_of(value: object, choices: Collection[object], what: str) -> None:
    """Refuse a VALUE for WHAT that is none of CHOICES.

    Raises:
        BadInputError: it is none.
    """
    if value not in choices:
        raise BadInputError(
            f"{what} cannot be {value!r}; choose from {', '.join(map(str, choices))}"
        )


def choices_of(kind: object) -> list[object]:
    """Return the values that the annotation KIND allows; empty where it does not list them.

    >>> choices_of(Literal["a", "b"] | None), choices_of(str)
    (['a', 'b', None], [])
    """
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    parts = [choices_of(part) or [None] * (part is type(None)) for part in get_args(kind)]
    return [value for part in parts for value in part] if all(parts) else []


def as_kind(value: Any, kind: Any, what: str) -> Any:
    """Return VALUE as the annotation KIND has it: paths and texts stand for each other, nothing else does.

    >>> as_kind("here", Path | None, "inputs") == Path("here"), as_kind(["PASS"], Collection[str], "")
    (True, ['PASS'])

    Raises:
        BadInputError: VALUE, given for WHAT, is of another kind.
    """
    if choices := choices_of(kind):
        require_one_of(value, choices, what)
        return value
    kinds = _alternatives(kind)
    if any(_fits(value, it) for it in kinds):
        return value
    for own, other in ((str, Path), (Path, str)):
        if isinstance(value, own) and other in kinds:
            return other(value)
    known = " or ".join(dict.fromkeys(_words(it) for it in kinds))
    raise BadInputError(f"{what} cannot be {_shown(value)}; give {known}")


def _shown(value: object) -> str:
    """Return how VALUE is printed, or what it is where that takes lines."""
    printed = repr(value)
    one_line = len(printed) <= SHOWN and "\n" not in printed
    return printed if one_line else f"an object of type {type(value).__name__}"


def require_kinds(settings: Any) -> None:
    """Bring each field of SETTINGS, a frozen dataclass, to its kind.

    Raises:
        BadInputError: one is of another.
    """
    for name, kind in get_type_hints(type(settings)).items():
        object.__setattr__(settings, name, as_kind(getattr(settings, name), kind, name))


def typed(function: Callable[Given, Made]) -> Callable[Given, Made]:
    """Return FUNCTION with its arguments held against its annotations."""
    shape = signature(function)

    @wraps(function)
    def called(*given: Given.args, **named: Given.kwargs) -> Made:
        bound, kinds = shape.bind(*given, **named), get_type_hints(function)
        for name, value in bound.arguments.items():
            bound.arguments[name] = as_kind(value, kinds.get(name, Any), name)
        return function(*bound.args, **bound.kwargs)

    return called


def _alternatives(kind: Any) -> tuple[Any, ...]:
    """Return what KIND is a union of."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _fits(value: Any, kind: Any) -> bool:
    """Say whether VALUE is of KIND: no text is a list of letters, no bool a number."""
    origin, parts = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(value, it) for it in parts)
    if kind is Any or origin is collections.abc.Callable:
        return kind is Any or callable(value)
    if not isinstance(value, NUMBERS.get(origin, origin)):
        return False
    return not isinstance(value, bool) if origin in NUMBERS else _items_fit(value, parts)


def _items_fit(value: Any, kinds: Sequence[Any]) -> bool:
    """Say whether what is in VALUE is of KINDS; what can be read only once is not looked at."""
    if not kinds or not isinstance(value, Collection):
        return True
    rows = value.items() if isinstance(value, Mapping) else ((it,) for it in value)
    return not isinstance(value, str) and all(all(map(_fits, row, kinds)) for row in rows)


def _words(kind: Any) -> str:
    """Return what values of KIND are called."""
    words = WORDS.get(get_origin(kind) or kind, str(kind))
    items = get_args(kind) if words == "a list" else ()
    return words + "".join(f" of {_words(it).removeprefix('a ')}s" for it in items)
