"""Does an adapter belong to a base? Names, shapes, and whether it is all there."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from ...errors import MismatchError
from ..checkpoints import Header
from ..common.dtypes import FLOATS
from ..values import LowRank
from .adapter import Adapter, module_of
from .alignment import align
from .expectations import Expectation, expected_updates, unnamed
from .peft.nesting import in_order_of
from .peft.targets import kept_whole

HINTS: Final = 20  # nearest names are searched for so many problems; the search is quadratic
MATRIX: Final = 2
TIED: Final = (
    "is tied: the base has one parameter under two names, and PEFT changes it under one of them,"
    " mlx-lm under both. Untie it first, or merge with the program that trained it"
)
UNNAMED: Final = "has an update, but adapter_config.json does not name it"
SAVE: Final = "or save it again with PEFT from the class of the base"
LOADERS: Final = {"peft": "PEFT would ignore", "mlx": "mlx-lm would drop or refuse"}


def fit(
    adapter: Adapter,
    headers: Mapping[str, Header],
    kinds: Mapping[str, str] | None = None,
    *,
    tied: frozenset[str] = frozenset(),
) -> Adapter:
    """Check ADAPTER against the parameters of a base, and align every update with its parameter.

    Args:
        adapter: as read; one that is fitted already is only checked.
        headers: the base's parameters in the naming of the adapter's framework, in the order in
            which its class registers them.
        kinds: what the base's modules are (``libraries.modules``); without them shapes decide.
        tied: parameters that are one with another.

    Raises:
        MismatchError: updates of parameters that the base does not have or has in another shape,
            modules that the configuration names without an update, updates that it does not name,
            tied parameters; all together.
    """
    adapter = _ordered(adapter, headers)
    unknown = sorted({*adapter.updates, *adapter.saved} - set(headers))
    modules = modules_in(headers, kinds)
    expectation = expected_updates(adapter, modules, headers)
    unread = sorted(unnamed(adapter, modules, kinds) & set(headers))
    missing = sorted(expectation.parameters - adapter.updates.keys())
    aligned, misshapen = _aligned(adapter, headers, kinds)
    problems = [
        *_unknown(unknown, headers),
        *misshapen,
        *_whole(adapter, headers),
        *(f"{name} {TIED}" for name in sorted(_tied(adapter, tied))),
        *_absent(missing, expectation, modules),
        *(f"{name} {UNNAMED}; {LOADERS[adapter.dialect]} it" for name in unread),
    ]
    if problems:
        hint = other_class(adapter, headers) if adapter.dialect == "peft" else ""
        raise MismatchError(hint or _summary(adapter, unknown, missing, expectation), problems)
    return replace(adapter, updates=aligned, fitted=True)


def _absent(missing: list[str], expectation: Expectation, modules: set[str]) -> Iterator[str]:
    """Yield what the configuration names and the file, or the base, lacks."""
    for name in missing:
        yield f"{name} has no update, but adapter_config.json names it"
    for name in expectation.whole:
        yield f"{name} is named in modules_to_save, but not in the file"
    yield from _unknown_keys(expectation.unknown, modules)


def _ordered(adapter: Adapter, headers: Mapping[str, Header]) -> Adapter:
    """Return ADAPTER with updates that lie in PEFT's wrappers under the names that the base gives."""
    nested = [name for name in adapter.updates if adapter.forms.get(name) == "experts"]
    if adapter.fitted or not nested:
        return adapter
    shapes = {name: header.shape for name, header in headers.items()}
    updates = in_order_of(adapter.updates, adapter.config, shapes, nested)
    forms = {name: adapter.forms.get(name, "experts") for name in updates}
    known = {
        name: form
        for name, form in forms.items()
        if name in adapter.forms or name not in adapter.updates
    }
    return replace(adapter, updates=updates, forms=known)


def _aligned(
    adapter: Adapter, headers: Mapping[str, Header], kinds: Mapping[str, str] | None
) -> tuple[dict[str, LowRank], list[str]]:
    """Return the updates with the axes of their parameters, and what does not fit."""
    updates, problems = {}, []
    for name, update in sorted(adapter.updates.items()):
        updates[name] = update
        if name not in headers:
            continue
        if headers[name].dtype not in FLOATS:
            what = f"is quantized in the base ({headers[name]})"
            problems.append(f"{name} {what}; fit it to the original weights")
        elif adapter.fitted:
            if update.shape != headers[name].shape:
                problems.append(f"{name}: expected an update of {list(headers[name].shape)}")
        else:
            updates[name], problem = align(adapter, name, headers[name].shape, kinds)
            problems += [problem] if problem else []
    return updates, problems


def _whole(adapter: Adapter, headers: Mapping[str, Header]) -> list[str]:
    """Say which `modules_to_save` tensors have another shape than those of the base."""
    return [
        f"{name}: the saved tensor has shape {list(array.shape)}, that of the base"
        f" {list(headers[name].shape)}; resize the base's embeddings as they were for training"
        for name, array in sorted(adapter.saved.items())
        if name in headers and array.shape != headers[name].shape
    ]


def _tied(adapter: Adapter, tied: frozenset[str]) -> set[str]:
    """Return the parameters among TIED that ADAPTER trains."""
    kept = {name for name in adapter.saved if kept_whole(adapter.config, name.rpartition(".")[0])}
    return kept.union(adapter.updates) & tied


def modules_in(headers: Mapping[str, Header], kinds: Mapping[str, str] | None) -> set[str]:
    """Return the paths of the modules that an adapter can be put on, by their ``weight``."""
    return {
        module_of(name)
        for name, header in headers.items()
        if name.endswith(".weight")
        and (len(header.shape) == MATRIX if kinds is None else module_of(name) in kinds)
    }


def _summary(
    adapter: Adapter, unknown: list[str], missing: list[str], expectation: Expectation
) -> str:
    count = len(adapter.updates) + len(adapter.saved)
    if len(unknown) == count:
        return (
            f"adapter {adapter.path} is for another model, the base has none of its {count} weights"
        )
    if missing:
        expected = len(expectation.parameters)
        found = expected - len(missing)
        return f"adapter {adapter.path} is partial: {expected} updates expected, {found} found"
    return f"adapter {adapter.path} does not fit the base"


def _unknown(names: list[str], headers: Mapping[str, Header]) -> list[str]:
    return [
        f"{name} is not in the base{nearest(name, headers) if place < HINTS else ''}"
        for place, name in enumerate(names)
    ]


def _unknown_keys(keys: Iterable[str], modules: set[str]) -> list[str]:
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


def other_class(adapter: Adapter, parameters: Collection[str]) -> str:
    """Say what to do if one prefix is all that lies between ADAPTER's names and PARAMETERS.

    Returns:
        one line; empty if it is not so.
    """
    names = sorted({*adapter.updates, *adapter.saved})
    if not names or not set(names).isdisjoint(parameters):
        return ""
    for prefix in _lacking(names, parameters):
        return (
            f"adapter {adapter.path} was trained on a bare class (AutoModel), and the base is one with"
            f" a head: all {len(names)} names lack {prefix!r}. Rename its tensors from"
            f" base_model.model.X to base_model.model.{prefix}X, and full paths in"
            f" adapter_config.json likewise, {SAVE}"
        )
    for prefix in _having(names, parameters):
        return (
            f"adapter {adapter.path} was trained on a class with a head, and the base is a bare one"
            f" (AutoModel): all {len(names)} names begin with {prefix!r}. Name a base that was saved"
            f" with its head, or rename the tensors from base_model.model.{prefix}X to"
            f" base_model.model.X, and full paths in adapter_config.json likewise, {SAVE}"
        )
    return ""


def _lacking(names: list[str], parameters: Collection[str]) -> Iterator[str]:
    """Yield what makes parameters of all NAMES if it is put before them."""
    ending = f".{names[0]}"
    found = {name.removesuffix(names[0]) for name in parameters if name.endswith(ending)}
    there = set(parameters)
    return (it for it in sorted(found) if all(f"{it}{name}" in there for name in names))


def _having(names: list[str], parameters: Collection[str]) -> Iterator[str]:
    """Yield what makes parameters of all NAMES if it is taken away."""
    parts = names[0].split(".")
    found = [".".join(parts[:end]) + "." for end in range(1, len(parts))]
    there = set(parameters)
    for it in found:
        if all(name.startswith(it) and name.removeprefix(it) in there for name in names):
            yield it
