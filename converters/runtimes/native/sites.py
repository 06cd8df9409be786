"""Submodules of a native ``mlx.nn`` module, watched while it runs: recorded and corrected."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import mlx.core as mx
from mlx import nn

from ...common.arrays import from_mlx, to_mlx
from ...values import Array

INPUT: Final = "|in"


class Watch:
    """What submodules take and return; their classes are exchanged for the time of a run.

    Attributes:
        corrections: by site; one of another shape than its site's does nothing.
        seen: the first floating-point array of every input (``SITE|in``) and output.
    """

    def __init__(self, corrections: Mapping[str, Array]) -> None:
        self.corrections = corrections
        self.seen: dict[str, mx.array] = {}

    def through(self, site: str, value: Any) -> Any:
        """Record VALUE, of SITE, and return it, corrected if there is a correction."""
        array = _first(value)
        if array is None:
            return value
        self.seen[site] = array
        if site not in self.corrections or self.corrections[site].shape != array.shape:
            return value
        return _with_first(value, to_mlx(self.corrections[site]).astype(array.dtype))

    def called(self, path: str, number: int, call: Any, args: Any, kwargs: Any) -> Any:
        """Call a submodule; a second call of it is another site, ``PATH@1``."""
        site = f"{path}@{number}" if number else path
        if args:
            args = self.through(site + INPUT, args)
        elif kwargs:
            name = next(iter(kwargs))
            kwargs = {**kwargs, name: self.through(site + INPUT, kwargs[name])}
        return self.through(site, call(*args, **kwargs))


def _first(value: Any) -> mx.array | None:
    if isinstance(value, mx.array):
        return value if mx.issubdtype(value.dtype, mx.floating) else None
    return _first(value[0]) if isinstance(value, tuple | list) and value else None


def _with_first(value: Any, new: mx.array) -> Any:
    if isinstance(value, mx.array):
        return new
    return type(value)([_with_first(value[0], new), *value[1:]])


def _watched(path: str, child: nn.Module, watch: Watch) -> type[nn.Module]:
    """Return a class like CHILD's whose calls go through WATCH."""
    kind, calls = type(child), iter(range(1 << 30))

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        def inner(*given: Any, **named: Any) -> Any:
            return kind.__call__(self, *given, **named)

        return watch.called(path, next(calls), inner, args, kwargs)

    return type(kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__})


@contextlib.contextmanager
def watching(module: nn.Module, corrections: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
    """Record every submodule of MODULE that is called; the sites are filled in as this ends."""
    watch, sites = Watch(corrections), dict[str, Array]()
    kinds: dict[int, tuple[nn.Module, type]] = {}
    for path, child in module.named_modules():
        if path and callable(child) and id(child) not in kinds:
            kinds[id(child)] = child, type(child)
            object.__setattr__(child, "__class__", _watched(path, child, watch))
    try:
        yield sites
        sites |= {site: from_mlx(array) for site, array in watch.seen.items()}
    finally:
        for child, kind in kinds.values():
            object.__setattr__(child, "__class__", kind)
