"""What a checkpoint must be for a run to go on from it: held against the run before anything is taken."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

from ...converters.values import Array

SHOWN: Final = 60  # characters of a value
Carried = TypeVar("Carried")


def differing(facts: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield which of FACTS, as the checkpoint has them, are not what they are NOW."""
    for key, value in now.items():
        found = facts.get(key)
        if found != value:
            yield f"{key}: {str(found)[:SHOWN]} in the checkpoint, {value} now"


def misshapen(arrays: Mapping[str, Array], fresh: Mapping[str, Array]) -> Iterator[str]:
    """Yield where the state ARRAYS is not that of the model and the optimizer of a FRESH step."""
    for name in sorted(fresh.keys() - arrays.keys()):
        yield f"{name} is missing"
    for name in sorted(arrays.keys() & fresh.keys()):
        have, want = arrays[name], fresh[name]
        if (have.shape, have.dtype) != (want.shape, want.dtype):
            yield f"{name} is {have.dtype}{list(have.shape)}, not {want.dtype}{list(want.shape)}"
    yield from (f"{name} is unexpected" for name in sorted(arrays.keys() - fresh.keys()))


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
