"""What the configuration of compressed-tensors says of a weight, held against its tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from .....errors import BadInputError
from ..base import Section

FORMAT_KEY: Final = "format"
PACKED: Final[Mapping[str, bool]] = {  # formats by whether codes are packed
    "pack-quantized": True,
    "nvfp4-pack-quantized": True,
    "mxfp4-pack-quantized": True,
    "int-quantized": False,
    "float-quantized": False,
    "naive-quantized": False,
}
STRATEGIES: Final = (
    None,
    "tensor",
    "channel",
    "group",
    "block",
    "token",
    "tensor_group",
    "attn_head",
)


def says_of(section: Section, path: str) -> Mapping[str, Any]:
    """Return what SECTION says of the weight of the module PATH: names first, then classes."""
    groups = section.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise BadInputError(f"config.json: config_groups is {groups!r}, expected an object")
    by_class = None
    for group in groups.values():
        weights, targets = (part_of(group, key) for key in ("weights", "targets"))
        if not isinstance(weights, Mapping) or not isinstance(targets, list):
            raise BadInputError(
                f"config.json: config_groups has {group!r}, expected weights, targets"
            )
        found = _format_of(group, section) | dict(weights)
        if any(matches(path, target) for target in targets):
            return found
        if any(str(target)[:1].isupper() for target in targets):  # a class, such as Linear
            by_class = by_class or found
    if by_class is None:
        raise BadInputError(f"{path} is quantized and no group of config.json names it")
    return by_class


def _format_of(group: Mapping[str, Any], section: Section) -> dict[str, Any]:
    """Return the format that GROUP names, or SECTION for all of them."""
    found = group.get("format") or section.get("format")
    if not isinstance(found, str | None):
        raise BadInputError(f"config.json: format is {found!r}, expected a string")
    return {FORMAT_KEY: found}


def require_true(path: str, says: Mapping[str, Any], ending: str) -> None:
    """Refuse what SAYS of the weight of the module PATH, whose codes are its tensor ENDING, cannot be.

    Raises:
        BadInputError: its format, strategy or scales are others.
    """
    named, dynamic, strategy = (says.get(key) for key in (FORMAT_KEY, "dynamic", "strategy"))
    packed = ending == "weight_packed"
    if PACKED.get(str(named), packed) != packed:
        words = f"format {named!r}; stored is {path}.{ending}"
    elif dynamic not in (None, False):
        words = f"dynamic is {dynamic!r}; {path}.weight_scale is stored"
    elif strategy not in STRATEGIES:
        words = f"strategy {strategy!r}; known are {', '.join(filter(None, STRATEGIES))}"
    else:
        return
    raise BadInputError(f"{path}: config.json says {words}")


def part_of(group: object, key: str) -> Any:
    """Return KEY of GROUP; ``None`` where it is none."""
    return group.get(key) if isinstance(group, Mapping) else None


def matches(path: str, target: object) -> bool:
    """Say whether TARGET, a name or an expression, is the module PATH.

    Raises:
        BadInputError: it is no expression.
    """
    text = str(target)
    if not text.startswith("re:"):
        return text == path
    try:
        return re.match(text[3:], path) is not None
    except re.error as error:
        raise BadInputError(f"config.json: target {text!r} is no expression: {error}") from error
