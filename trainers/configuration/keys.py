"""The keys of a configuration: all of them, those of what is chosen, and the nearest to a wrong one."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from types import MappingProxyType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, Discriminator, Tag


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


def alternatives(annotation: Any) -> list[Any]:
    """Return what ANNOTATION is a union of, ``None`` apart.

    >>> alternatives(int | None), alternatives(int | str)
    ([<class 'int'>], [<class 'int'>, <class 'str'>])
    """
    if get_origin(annotation) is Annotated:
        return alternatives(get_args(annotation)[0])
    if get_origin(annotation) not in (Union, UnionType):
        return [annotation]
    return [part for part in get_args(annotation) if part is not type(None)]


def tagged(annotation: Any) -> dict[str, type[BaseModel]]:
    """Return the sections that ANNOTATION chooses from, by their names; none where it does not choose by name."""
    return {
        it.tag: section
        for part in alternatives(annotation)
        if get_origin(part) is Annotated
        for section, *others in [get_args(part)]
        for it in others
        if isinstance(it, Tag)
    }


def chosen_section(config: type[BaseModel], name: str, value: Any) -> type[BaseModel] | None:
    """Return the section that VALUE chooses for the field NAME of CONFIG; ``None`` where it chooses none."""
    field = config.model_fields[name]
    for it in field.metadata:
        if isinstance(it, Discriminator) and callable(it.discriminator):
            return tagged(field.annotation).get(str(it.discriminator(value)))
    return None


def known_keys(
    section: type[BaseModel],
    prefix: str = "",
    chosen: Mapping[str, type[BaseModel]] = MappingProxyType({}),
) -> Iterator[str]:
    """Yield the dotted name of every key of SECTION, those of sections in it included, or of the CHOSEN ones.

    >>> from .updates import ScheduleSection
    >>> list(known_keys(ScheduleSection))
    ['kind', 'warmup', 'final']
    """
    for name, field in section.model_fields.items():
        yield prefix + name
        for part in [chosen[name]] if name in chosen else sections_in(field.annotation):
            yield from known_keys(part, f"{prefix}{name}.")


def nearest(
    key: str,
    config: type[BaseModel],
    cutoff: float = 0.5,
    chosen: Mapping[str, type[BaseModel]] = MappingProxyType({}),
) -> list[str]:
    """Return the keys of CONFIG that KEY may stand for, several only where they are equally near and deep.

    Of sections that are chosen by a name only those of the CHOSEN ones count, where these are given.

    >>> from ..config import TrainConfig
    >>> nearest("lr", TrainConfig), nearest("optimizer.lerning_rate", TrainConfig)
    (['optimizer.learning_rate'], ['optimizer.learning_rate'])
    """
    near = {known: _likeness(key, known) for known in known_keys(config, chosen=chosen)}
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
