"""What is wrong with a configuration, one line a key: the value that was given, and what to give instead."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

from pydantic import BaseModel, ValidationError

from .keys import alternatives, chosen_section, known_keys, nearest, sections_in, tagged
from .section import CUSTOM

SURE, UNSURE = 0.85, 0.5  # how like a key is to what it may stand for
LONGEST: Final = 60  # characters of a value that are shown
WANTED: Final = {  # by pydantic's name of the mistake, with what it says of it
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a text",
    "tuple_type": "a list, such as {listed}",
    "dict_type": "names with a value each, such as {{name: value}}",
    "greater_than": "a number more than {gt}",
    "greater_than_equal": "a number of at least {ge}",
    "less_than": "a number less than {lt}",
    "less_than_equal": "a number of at most {le}",
    "literal_error": "{expected}",
    "too_short": "at least {min_length} of them",
    "too_long": "at most {max_length} of them",
}
MISSING: Final = {  # by key, what to give
    "model": "--set model=DIRECTORY, or MODULE:FUNCTION that builds one",
    "data": "--set data=FILE, or its kind and files: --set data.kind=NAME --set data.train=FILE",
    "objective": "--set objective=NAME, of {names}, or MODULE:CLASS",
    "data.train": "--set data.train=FILE",
    "data.validation": "{kind} hold nothing out of the training file; --set data.validation=FILE, with what comes after it",
    "objective.teacher": "--set objective.teacher=DIRECTORY, the model whose logits are learned",
}


class Place(NamedTuple):
    """Where a mistake is: the KEY, and the annotation of what it stands for, ``None`` of an unknown key."""

    key: str
    annotation: Any


def problems_of(
    error: ValidationError, config: type[BaseModel], settings: Mapping[str, Any]
) -> list[str]:
    """Return one line for each key of SETTINGS that ERROR complains of.

    A list is not called too short where items of it are wrong: pydantic counts the right ones alone.
    """
    places: dict[str, list[Any]] = {}
    details = error.errors()
    below = {it["loc"][:-1] for it in details}
    for detail in details:
        if detail["type"] == "too_short" and detail["loc"] in below:
            continue
        places.setdefault(_place(detail["loc"], config).key, []).append(detail)
    return [f"{key}: {_words(key, found, config, settings)}" for key, found in places.items()]


def _place(loc: Sequence[str | int], config: type[BaseModel]) -> Place:
    """Return where LOC is, without pydantic's names for the members of a union."""
    names: list[str] = []
    annotation: Any = config
    for part in loc:
        if tags := tagged(annotation):
            annotation = tags.get(str(part))
            continue
        several = alternatives(annotation)
        if len(several) > 1:  # by kinds of values, which have no keys
            break
        names.append(str(part))
        annotation = _below(several[0], part)
    return Place(".".join(names), annotation)


def _below(annotation: Any, part: str | int) -> Any:
    """Return the annotation of PART of what ANNOTATION stands for."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        field = annotation.model_fields.get(str(part))
        return field and field.annotation
    items = get_args(annotation)
    return items[-1 if isinstance(part, str) else 0] if items else None


def _words(
    key: str, found: Sequence[Any], config: type[BaseModel], settings: Mapping[str, Any]
) -> str:
    """Return what is wrong with the value of KEY, by what pydantic FOUND."""
    first = found[0]
    if first["type"] == "missing":
        return _missing(key, config, settings)
    unspaced = _unspaced(key) if first["input"] is None else ""
    if first["type"] == "extra_forbidden":
        return unspaced or _unknown(key, config, settings)
    if first["type"] == "union_tag_invalid":
        return _unknown_tag(first["ctx"], files=key == "data")
    if first["type"] == "union_tag_not_found":
        return _without_tag(key, first["input"], config)
    wanted = list(dict.fromkeys(_wanted(it, _place(it["loc"], config)) for it in found))
    if None in wanted:
        return str(first["msg"]).removeprefix("Value error, ")
    return unspaced or f"cannot be {_shown(first['input'])}; give {' or '.join(map(str, wanted))}"


def _unspaced(key: str) -> str:
    """Return what to say of KEY, which has no value, where it holds one behind a colon; else nothing.

    >>> _unspaced("data.columns.x:price"), _unspaced("data.columns.x"), _unspaced("adapter.dropout:0.1")[-14:]
    ('YAML takes it for a name without a value; write a space after the colon, {x: price}', '', '{dropout: 0.1}')
    """
    name, _, value = key.partition(":")
    hint = "YAML takes it for a name without a value; write a space after the colon"
    return f"{hint}, {{{name.rpartition('.')[2]}: {value}}}" if value else ""


def _missing(key: str, config: type[BaseModel], settings: Mapping[str, Any]) -> str:
    """Return what to give for KEY, which SETTINGS lack."""
    if key not in MISSING:
        return "is missing"
    names = ", ".join(_names("objective", config))
    data = settings.get("data")
    kind = data.get("kind") if isinstance(data, Mapping) else data
    return f"is missing; {MISSING[key].format(names=names, kind=kind)}"


def _names(key: str, config: type[BaseModel]) -> list[str]:
    """Return the names of the sections that KEY chooses from, without that of the user's code."""
    return [tag for tag in tagged(config.model_fields[key].annotation) if tag != CUSTOM]


def _wanted(detail: Mapping[str, Any], place: Place) -> str | None:
    """Return what to give in place of a value, by one DETAIL; ``None`` where only pydantic can say."""
    sections = list(sections_in(place.annotation))
    if sections and not isinstance(detail["input"], Mapping):
        return f"its settings, of {', '.join(sections[0].model_fields)}"
    if detail["type"] == "string_type" and Path in alternatives(place.annotation):
        return "a path"
    words = WANTED.get(detail["type"])
    known = {"listed": _listed(detail["input"], place)} | dict(detail.get("ctx", {}))
    return words and words.format_map(known).replace("'", "")


def _listed(value: Any, place: Place) -> str:
    """Return VALUE alone as a list of what is in one at PLACE."""
    (kind, *_) = alternatives(alternatives(place.annotation)[0])  # a union may hold one with limits
    items = get_args(kind)
    number = 1 if ... in items else len(items)
    return _shown([str(value) if str in items else value] * number)


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _unknown(key: str, config: type[BaseModel], settings: Mapping[str, Any]) -> str:
    """Return what to say of a KEY that there is not, or not of what SETTINGS choose."""
    chosen = {
        name: section
        for name in config.model_fields
        if (section := chosen_section(config, name, settings.get(name, {})))
    }
    others = " and ".join(_having(key, config))
    near = " or ".join(nearest(key, config, SURE if others else UNSURE, chosen))
    words = f"no such key ({others} have it)" if others else "no such key"
    return words + (f"; did you mean {near}?" if near else "")


def _having(key: str, config: type[BaseModel]) -> Iterator[str]:
    """Yield the tags of the sections that have KEY, where its section is chosen by one."""
    name, _, rest = key.partition(".")
    if field := config.model_fields.get(name):
        for tag, section in tagged(field.annotation).items():
            if rest in known_keys(section):
                yield tag


def _without_tag(key: str, value: Any, config: type[BaseModel]) -> str:
    """Return what to say of a VALUE of KEY that does not choose its section."""
    choice = "kind" if key == "data" else "name"
    known = ", ".join(_names(key, config))
    if isinstance(value, Mapping):
        return f"has no {choice}; --set {key}.{choice}=NAME, of {known}, or MODULE:CLASS"
    return f"cannot be {_shown(value)}; give its {choice}, of {known}, or its settings"


def _unknown_tag(context: Mapping[str, Any], *, files: bool) -> str:
    """Return what to say of a name that chooses no section; with FILES it may be a file that is missing."""
    if files and Path(str(context["tag"])).suffix:
        return f"there is no file {context['tag']}"
    tags = [tag.strip("'") for tag in str(context["expected_tags"]).split(", ")]
    known = [tag for tag in tags if tag != CUSTOM]
    near = difflib.get_close_matches(str(context["tag"]), known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    code = ", nor module:Class" if CUSTOM in tags else ""
    return f"{context['tag']} is none of {', '.join(known)}{code}{hint}"
