"""Does an adapter belong to a base? Names, shapes, and whether it is all there."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Final

from ...errors import MismatchError
from ..checkpoints import Header
from ..dtypes import FLOATS
from ..values import LowRank
from .adapter import Adapter
from .promises import promised

HINTS: Final = 20  # nearest names are searched for so many problems; the search is quadratic


def fit(adapter: Adapter, headers: Mapping[str, Header]) -> None:
    """Check ADAPTER against the tensors of a base, in the naming of the adapter's framework.

    Raises:
        MismatchError: updates of weights that the base does not have or has in another shape, and
            modules that the configuration promises without an update; all of them together.
    """
    strangers = sorted(set(adapter.updates) - set(headers))
    misshapen = [
        problem
        for name, update in sorted(adapter.updates.items())
        if name in headers and (problem := _misfit(name, update, headers[name]))
    ]
    promise = promised(adapter, _modules(headers))
    missing = sorted({f"{module}.weight" for module in promise.modules} - set(adapter.updates))
    problems = [
        *_unknown(strangers, headers),
        *misshapen,
        *(f"{name} has no update, but adapter_config.json names it" for name in missing),
        *_unknown_keys(promise.unknown, headers),
    ]
    if problems:
        raise MismatchError(
            _summary(adapter, len(strangers), len(missing), len(promise.modules)), problems
        )


def _modules(headers: Mapping[str, Header]) -> set[str]:
    """Return the paths of the modules of which a weight is a matrix."""
    return {
        name.removesuffix(".weight")
        for name, header in headers.items()
        if name.endswith(".weight") and len(header.shape) == 2
    }


def _summary(adapter: Adapter, strangers: int, missing: int, expected: int) -> str:
    count = len(adapter.updates)
    if strangers == count:
        return (
            f"adapter {adapter.path} is for another model, the base has none of its {count} weights"
        )
    if missing:
        found = expected - missing
        return f"adapter {adapter.path} is partial: {expected} updates expected, {found} found"
    return f"adapter {adapter.path} does not fit the base"


def _misfit(name: str, update: LowRank, base: Header) -> str:
    """Say why UPDATE cannot be an update of BASE."""
    if base.dtype not in FLOATS:
        return f"{name} is quantized in the base ({base}); fit it to the original weights"
    if update.shape == base.shape:
        return ""
    turned = update.shape == base.shape[::-1]
    hint = (
        "; transposed, as an embedding's update would be, which is not supported" if turned else ""
    )
    return f"{name}: expected an update of {list(base.shape)}, found {list(update.shape)}{hint}"


def _unknown(names: list[str], headers: Mapping[str, Header]) -> list[str]:
    return [
        f"{name} is not in the base{nearest(name, headers) if place < HINTS else ''}"
        for place, name in enumerate(names)
    ]


def _unknown_keys(keys: Iterable[str], headers: Mapping[str, Header]) -> list[str]:
    modules = _modules(headers)
    return [
        f"{key} is named in adapter_config.json, but not in the base{nearest(key, modules)}"
        for key in keys
    ]


def nearest(name: str, names: Iterable[str]) -> str:
    """Return ``; nearest is X``, or nothing if none of NAMES is near.

    >>> nearest("q_prj.weight", ["q_proj.weight", "norm.bias"])
    '; nearest is q_proj.weight'
    """
    found = difflib.get_close_matches(name, names, n=1)
    return f"; nearest is {found[0]}" if found else ""
