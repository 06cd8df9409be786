"""What a checkpoint must be for a run to go on from it: held against the run before anything is taken."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

from ...converters.values import Array

PARAMETERS, OPTIMIZER, RANDOM = "parameters/", "optimizer/", "random"
SHOWN: Final = 60  # characters of a value
Carried = TypeVar("Carried")


def differing(facts: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield which of FACTS, as the checkpoint has them, are not what they are NOW."""
    for key, value in now.items():
        found = facts.get(key)
        if found != value:
            yield f"{key}: {str(found)[:SHOWN]} in the checkpoint, {value} now"


def misshapen(arrays: Mapping[str, Array], fresh: Mapping[str, Array]) -> Iterator[str]:
    """Yield where the state ARRAYS is not that of the model and the optimizer of a FRESH step.

    A fresh optimizer may have no moments yet; a state has the same ones of every parameter.
    """
    for name in sorted(fresh.keys() - arrays.keys()):
        yield f"{name} is missing"
    for name in sorted(arrays.keys() & fresh.keys()):
        have, want = arrays[name], fresh[name]
        if (have.shape, have.dtype) != (want.shape, want.dtype):
            yield f"{name} is {have.dtype}{list(have.shape)}, not {want.dtype}{list(want.shape)}"
    yield from unexpected(arrays, fresh)


def unexpected(arrays: Mapping[str, Array], fresh: Mapping[str, Array]) -> Iterator[str]:
    """Yield which of ARRAYS are no moments of a parameter, or not those of every parameter."""
    shapes = {
        name.removeprefix(PARAMETERS): array.shape
        for name, array in fresh.items()
        if name.startswith(PARAMETERS)
    }
    kinds: dict[str, set[str]] = {parameter: set() for parameter in shapes}
    for name in sorted(arrays.keys() - fresh.keys()):
        kind, parameter = moment(name, shapes)
        if parameter is None or arrays[name].shape not in ((), shapes[parameter]):
            yield f"{name} is unexpected"
        else:
            kinds[parameter].add(kind)
    every = set[str]().union(*kinds.values())
    for parameter in sorted(kinds):
        for kind in sorted(every - kinds[parameter]):
            yield f"{kind} of {parameter} is missing"


def moment(name: str, parameters: Mapping[str, Any]) -> tuple[str, str | None]:
    """Split the NAME of an optimizer's array into its kind and one of PARAMETERS, if it is of one.

    torch names it ``optimizer/KIND/PARAMETER``, MLX ``optimizer/PARAMETER.KIND``.

    >>> moment("optimizer/exp_avg/a.b", {"a.b"}), moment("optimizer/a.b.v", {"a.b"})
    (('exp_avg', 'a.b'), ('v', 'a.b'))
    """
    inner = name.removeprefix(OPTIMIZER)
    kind, _, parameter = inner.partition("/")
    if parameter in parameters:
        return kind, parameter
    parameter, _, kind = inner.rpartition(".")
    return kind, parameter if parameter in parameters else None


def of_type(kind: type[Carried], facts: Any) -> tuple[Carried | None, list[str]]:
    """Return FACTS as the dataclass KIND, every field of it, or what is wrong with them."""
    from pydantic import TypeAdapter, ValidationError

    names = set(kind.__dataclass_fields__)  # type: ignore[attr-defined]  # of any dataclass
    if isinstance(facts, dict) and facts.keys() != names:
        return None, [
            f"progress.{name[:SHOWN]}: missing, or unknown" for name in facts.keys() ^ names
        ]
    try:
        return TypeAdapter(kind).validate_json(json.dumps(facts), strict=True), []
    except ValidationError as error:
        rows = [(".".join(map(str, detail["loc"])), detail["msg"]) for detail in error.errors()]
        return None, [f"progress{'.' if at else ''}{at[:SHOWN]}: {what}" for at, what in rows]
