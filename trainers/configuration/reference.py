"""The reference of a configuration, made from its schema: every key, its default, what it is, and how it is typed."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from .keys import sections_in

ATTRIBUTE: Final = re.compile(r"^    (\w+): (.*(?:\n     .*)*)", re.MULTILINE)
SENTENCE: Final = re.compile(r"(?<=\.)\s")
REQUIRED: Final = "required"


class Setting(NamedTuple):
    """One key of a configuration.

    Attributes:
        key: its dotted name.
        default: as YAML writes it; what may be chosen where something has to be; or ``required``.
        meaning: what the docstring of its section says of it, if it does.
    """

    key: str
    default: str
    meaning: str


def settings(config: type[BaseModel]) -> list[Setting]:
    """Return every key of CONFIG that has a value of its own, once; sections that are chosen by a name share keys.

    >>> from .updates import ScheduleSection
    >>> [(it.key, it.default) for it in settings(ScheduleSection)]
    [('kind', '"cosine"'), ('warmup', '0.1'), ('final', '0.0')]
    """
    found: dict[str, Setting] = {}
    for it in _each(config, ""):
        known = found.get(it.key, it._replace(default=""))
        defaults = dict.fromkeys(filter(None, [*known.default.split(" or "), it.default]))
        found[it.key] = known._replace(default=" or ".join(defaults))
    return [*found.values()]


def _each(section: type[BaseModel], prefix: str) -> Iterator[Setting]:
    about, _, attributes = (inspect.getdoc(section) or "").partition("Attributes:")
    meanings = dict(ATTRIBUTE.findall(attributes))
    for name, field in section.model_fields.items():
        sections = [*sections_in(field.annotation)]
        if not sections:
            named = (it for it in SENTENCE.split(about) if name.upper() in it.split())
            meaning = meanings.get(name) or next(named, "")
            yield Setting(prefix + name, _default(field), " ".join(meaning.split()))
        for part in sections:
            yield from _each(part, f"{prefix}{name}.")


def _default(field: FieldInfo) -> str:
    if get_origin(field.annotation) is Literal and field.is_required():
        return " or ".join(map(str, get_args(field.annotation)))
    if field.is_required() and any(getattr(it, "pattern", None) == ":" for it in field.metadata):
        return "module:Class"
    return REQUIRED if field.is_required() else json.dumps(field.default)
