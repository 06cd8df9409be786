"""Align an update with the axes of the parameter that it changes.

An adapter's update is read as that of a linear layer. The weights of an embedding and of
transformers' ``Conv1D`` lie the other way round, and so do some experts; what a module is, its class
says (``kinds``), or the form of the file, or else the shapes, where they can.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ...errors import UnsupportedError
from ..values import LowRank
from .adapter import Adapter, module_of

STRAIGHT: Final = "straight"
TRANSPOSED: Final = "transposed"
UNKNOWN: Final = "unknown"
# The layout of the weight of each kind, against ``y = x @ weight.T``.
LAYOUT: Final = {
    "linear": STRAIGHT,
    "conv1d": TRANSPOSED,
    "embedding": TRANSPOSED,
    "experts": STRAIGHT,
    "experts_in_out": TRANSPOSED,
    "parameter": STRAIGHT,
}
# Before, PEFT stored the factors of experts by other rules (0.17: always transposed; 0.19: the reverse).
EXPERTS_SINCE: Final = (0, 20)


class Aligned(NamedTuple):
    """An update with the axes of its parameter, or why it cannot have them."""

    update: LowRank
    problem: str = ""


def align(
    adapter: Adapter, name: str, shape: tuple[int, ...], kinds: Mapping[str, str] | None
) -> Aligned:
    """Return the update NAME of ADAPTER with the axes of a parameter of SHAPE.

    Args:
        adapter: as read.
        name: of the parameter.
        shape: of the parameter in the base.
        kinds: of the base's modules; ``None`` where nobody can tell.
    """
    update = _of_one_expert(adapter.updates[name], shape)
    way = _way(adapter, name, update, shape, kinds)
    if way == UNKNOWN:
        what = "is square, and nothing says whether it is transposed"
        return Aligned(update, f"{name} {what}: {_advice(adapter, name)}")
    if way == STRAIGHT:
        return Aligned(update, _misfit(name, update.shape, shape))
    try:
        transposed = update.transposed()
    except UnsupportedError as error:
        return Aligned(update, f"{name}: {error}")
    return Aligned(transposed, _misfit(name, transposed.shape, shape))


def _of_one_expert(update: LowRank, shape: tuple[int, ...]) -> LowRank:
    """Return UPDATE with a first axis where the parameter counts one expert."""
    if len(shape) == len(update.shape) + 1 and shape[0] == 1:
        return LowRank(update.a[None], update.b[None], update.scale)
    return update


def _way(
    adapter: Adapter,
    name: str,
    update: LowRank,
    shape: tuple[int, ...],
    kinds: Mapping[str, str] | None,
) -> str:
    form, stacked = adapter.forms.get(name, ""), len(shape) > len(("out", "in"))
    if form == "experts" and not stacked:  # PEFT takes such a parameter as it lies
        return STRAIGHT
    kind = (kinds or {}).get(module_of(name)) or (form if form != "experts" else "")
    if adapter.dialect == "peft" and stacked:
        return _way_of_experts(adapter, kind, update.shape, shape)
    if kind:
        return LAYOUT[kind]
    if update.shape != shape:
        return TRANSPOSED if _swapped(update.shape) == shape else STRAIGHT
    return UNKNOWN if adapter.dialect == "peft" and _doubtful(adapter, shape) else STRAIGHT


def _way_of_experts(
    adapter: Adapter, kind: str, found: tuple[int, ...], shape: tuple[int, ...]
) -> str:
    """Return the way of PEFT's experts: shapes decide, for PEFT's rule changed."""
    if found != shape:
        return TRANSPOSED if _swapped(found) == shape else STRAIGHT
    if _swapped(found) != found:
        return STRAIGHT
    old = _version(adapter.config.get("peft_version")) < EXPERTS_SINCE
    return UNKNOWN if old or not kind else LAYOUT[kind]


def _swapped(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:-2], shape[-1], shape[-2])


def _version(text: Any) -> tuple[int, ...]:
    """Return the first two numbers of a version; of none, later than all.

    >>> _version("0.19.1"), _version(None) > (99, 0)
    ((0, 19), True)
    """
    numbers = re.match(r"(\d+)\.(\d+)", text) if isinstance(text, str) else None
    return tuple(map(int, numbers.groups())) if numbers else (1 << 30,)


def _doubtful(adapter: Adapter, shape: tuple[int, ...]) -> bool:
    """Say whether a square weight could be a ``Conv1D``'s: PEFT noted that it met one."""
    return shape[0] == shape[-1] and bool(adapter.config.get("fan_in_fan_out"))


def _advice(adapter: Adapter, name: str) -> str:
    version = adapter.config.get("peft_version")
    if adapter.forms.get(name) == "experts" and _version(version) < EXPERTS_SINCE:
        return f"PEFT {version} stored experts by other rules; merge it with that version"
    return "the class of the base has to; install transformers, or merge the adapter with PEFT"


def _misfit(name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    if found == wanted:
        return ""
    return f"{name}: expected an update of {list(wanted)}, found {list(found)}"
