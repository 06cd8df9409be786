"""Maps learned from the classes of MLX libraries, kept between runs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache as once
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import xxhash

from ... import libraries
from ...checkpoints.base import Header
from ...common import cache
from ...common.steps import step
from ..headers import listed, unlisted

if TYPE_CHECKING:
    from ...libraries import Target

KIND = "map"


class Found(NamedTuple):
    """A learned map: its text, and names and shapes of what it leads to."""

    text: str
    layout: dict[str, Header]


def learned(target: Target, config: Mapping[str, Any], headers: Mapping[str, Header]) -> Found:
    """Return the map from tensors with HEADERS to the class TARGET, learned now or before.

    A user's own class is asked each time: its code may change without a version that says so.

    Raises:
        BadInputError: the class does not take the config.
        UnsupportedError: the class does more to the tensors than a map can say.
    """
    step("learning the map from the library's class")
    if target.library == "user" or not cache.folder():
        return learn_now(target, config, headers)
    made_by = [target.library, target.version, target.module, *edited(target.library)]
    made_by += target.repaired
    key = [*made_by, revision(), config, digest(headers)]
    kept = cache.recall(KIND, key)
    if kept is None:
        found = learn_now(target, config, headers)
        cache.keep(KIND, key, {"text": found.text, "layout": listed(found.layout)})
        return found
    return Found(kept["text"], unlisted(kept["layout"]))


def digest(headers: Mapping[str, Header]) -> str:
    """Return a fingerprint of HEADERS, in the order they have."""
    text = "\n".join([f"{name} {dtype} {shape}" for name, (dtype, shape) in headers.items()])
    return xxhash.xxh3_128_hexdigest(text.encode())


def get_ready() -> None:
    """Start what learns a map, before it is known what to ask."""
    from ..learn import warm

    warm()


def learn_now(target: Target, config: Mapping[str, Any], headers: Mapping[str, Header]) -> Found:
    """Return the map from HEADERS to TARGET, learned in a process of its own."""
    from ..learn import learn

    found = learn(target, config, headers)
    return Found(found.text, found.layout)


@once
def edited(library: str) -> list[Any]:
    """Return what else a map depends on: the version of MLX, and when LIBRARY's files last changed.

    A library may be installed as a working copy, whose version stays when its code changes. What is
    put before its code, as repairs are, lies beside ours.
    """
    from ...libraries.packages import folder

    places = (folder(library), Path(libraries.__file__).parent)
    times = [it.stat().st_mtime_ns for place in places if place for it in place.rglob("*.py")]
    return [metadata.version("mlx"), max(times, default=0)]


@once
def revision() -> int:
    """Return when the code that learns was last changed: what older code learned is not used."""
    return max(path.stat().st_mtime_ns for path in Path(__file__).parent.parent.rglob("*.py"))
