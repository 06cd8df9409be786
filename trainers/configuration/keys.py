"""The keys of a configuration: all of them, the nearest to a wrong one, and one line for each mistake."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, Discriminator

from .section import CUSTOM


def sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the sections that ANNOTATION allows.

    >>> from .updates import AdapterSection
    >>> [section.__name__ for section in sections_in(AdapterSection | None)]
    ['AdapterSection']
    """
    if isinstance(annotation, type) and get_origin(annotation) is None:
        if issubclass(annotation, BaseModel):
            yield annotation
        return
    parts = get_args(annotation)
    for part in parts[:1] if get_origin(annotation) is Annotated else parts:
        yield from sections_in(part)


def known_keys(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the dotted name of every key of SECTION, those of sections in it included.

    >>> from .updates import ScheduleSection
    >>> list(known_keys(ScheduleSection))
    ['kind', 'warmup', 'final']
    """
    for name, field in section.model_fields.items():
        yield prefix + name
        for part in sections_in(field.annotation):
            yield from known_keys(part, f"{prefix}{name}.")


def problem(detail: Mapping[str, Any], config: type[BaseModel]) -> str:
    """Return one line for one complaint of pydantic about a CONFIG."""
    key = ".".join(_path(detail["loc"], config))
    if detail["type"] == "union_tag_invalid":
        return f"{key}: {_unknown_tag(detail['ctx'])}"
    if detail["type"] == "union_tag_not_found":
        return f"{key}: has no {'kind' if key == 'data' else 'name'}"
    if detail["type"] != "extra_forbidden":
        return f"{key}: {detail['msg']}"
    near = " or ".join(nearest(key, config))
    return f"{key}: no such key" + (f"; did you mean {near}?" if near else "")


def _path(loc: tuple[str | int, ...], config: type[BaseModel]) -> list[str]:
    """Return LOC without the tags that pydantic puts behind a section that is chosen by a name."""
    field = config.model_fields.get(str(loc[0])) if loc else None
    chosen = field and any(isinstance(it, Discriminator) for it in field.metadata)
    return [str(part) for at, part in enumerate(loc) if not (chosen and at == 1)]


def _unknown_tag(context: Mapping[str, Any]) -> str:
    tags = [tag.strip("'") for tag in str(context["expected_tags"]).split(", ")]
    known = [tag for tag in tags if tag != CUSTOM]
    near = difflib.get_close_matches(str(context["tag"]), known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    code = ", nor module:Class" if CUSTOM in tags else ""
    return f"{context['tag']} is none of {', '.join(known)}{code}{hint}"


def nearest(key: str, config: type[BaseModel], cutoff: float = 0.5) -> list[str]:
    """Return the keys of CONFIG that KEY may stand for, several only where they are equally near and deep.

    >>> from ..config import TrainConfig
    >>> nearest("lr", TrainConfig), nearest("optimizer.lerning_rate", TrainConfig)
    (['optimizer.learning_rate'], ['optimizer.learning_rate'])
    """
    near = {known: _likeness(key, known) for known in known_keys(config)}
    best = max(near.values())
    found = [known for known, like in near.items() if like == best >= cutoff]
    depth = min((known.count(".") for known in found), default=0)
    return sorted(known for known in found if known.count(".") == depth)


def _likeness(key: str, known: str) -> float:
    """Return how like KNOWN the KEY is, from 0 to 1: in full, by its last name, or by initials."""
    leaf, full = key.rpartition(".")[2], known.rpartition(".")[2]
    initials = "".join(word[0] for word in full.split("_"))
    if leaf == full or (leaf == initials and len(leaf) > 1):
        return 1.0
    return max(_ratio(key, known), _ratio(leaf, full))


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()
