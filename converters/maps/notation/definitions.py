"""The values of the names in ``where``, from the configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from .expressions import Definition, Number, Words, evaluate


class Values(NamedTuple):
    """What the definitions of a rule come to.

    Attributes:
        known: the value of each name.
        words: the words of each name that stands for words.
        unknown: why the value of a name is not known.
    """

    known: dict[str, Number]
    words: dict[str, tuple[str, ...]]
    unknown: dict[str, str]


def values(definitions: Iterable[Definition], config: Mapping[str, Any]) -> Values:
    """Return the value of every name that DEFINITIONS define, later ones may use earlier ones.

    >>> from weighbridge.converters.maps.binding.weightmap import WeightMap
    >>> rule = WeightMap.parse("a [(q + k)] <-> b [q], c [k] where q = heads * dim, k = 2 * q").rules[0]
    >>> values(rule.where, {"heads": 2, "dim": 8})
    Values(known={'q': 16, 'k': 32}, words={}, unknown={})
    >>> values(rule.where, {"head": 2, "dim": 8}).unknown["q"]
    'config has no heads (nearest: head)'
    """
    result = Values({}, {}, {})
    for definition in definitions:
        if isinstance(definition.value, Words):
            result.words.update(dict.fromkeys(definition.names, definition.value.words))
            continue
        try:
            value = evaluate(definition.value, lambda key: _lookup(key, result.known, config))
        except (LookupError, ArithmeticError) as error:
            result.unknown.update(dict.fromkeys(definition.names, str(error.args[0])))
        else:
            result.known.update(dict.fromkeys(definition.names, value))
    return result


def _lookup(key: str, known: Mapping[str, Number], config: Mapping[str, Any]) -> Number:
    value: Any = known.get(key)
    if value is None:
        value = _nested(key, config)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise LookupError(f"{key} is {value!r} in the config, not a number")


def _nested(key: str, config: Mapping[str, Any]) -> Any:
    value: Any = config
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            near = get_close_matches(part, value, 1) if isinstance(value, Mapping) else []
            raise LookupError(f"config has no {key}" + (f" (nearest: {near[0]})" if near else ""))
        value = value[part]
    return value
