"""Submodules of a native ``mlx.nn`` module, called otherwise while it runs: recorded and corrected."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any, Final

import mlx.core as mx
from mlx import nn

from ...common.arrays import from_mlx, to_mlx
from ...values import Array

INPUT: Final = "|in"
Call = Callable[..., Any]


@contextlib.contextmanager
def called_as(layer: nn.Module, call: Call) -> Iterator[None]:
    """Let LAYER do CALL, which takes its own call first, in place of its own."""
    kind: Any = type(layer)

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        return call(lambda *given, **named: kind.__call__(self, *given, **named), *args, **kwargs)

    other = type(kind.__name__, (kind,), {"__call__": called, "__module__": kind.__module__})
    object.__setattr__(layer, "__class__", other)
    try:
        yield
    finally:
        object.__setattr__(layer, "__class__", kind)


@contextlib.contextmanager
def each_called_as(
    module: nn.Module, wanted: Callable[[str, nn.Module], bool], calling: Callable[[str], Call]
) -> Iterator[None]:
    """Let submodules of MODULE that are WANTED do what CALLING gives for their path.

    One with several paths is known by the first.
    """
    chosen: dict[int, tuple[str, nn.Module]] = {}
    for path, layer in module.named_modules():
        if wanted(path, layer):
            chosen.setdefault(id(layer), (path, layer))
    with contextlib.ExitStack() as stack:
        for path, layer in chosen.values():
            stack.enter_context(called_as(layer, calling(path)))
        yield


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

    def calling(self, path: str) -> Call:
        """Return how the submodule PATH is called; a second call of it is another site, ``PATH@1``."""
        numbers = count()

        def call(plain: Call, *args: Any, **kwargs: Any) -> Any:
            number = next(numbers)
            site = f"{path}@{number}" if number else path
            if args:
                args = self.through(site + INPUT, args)
            elif kwargs:
                name = next(iter(kwargs))
                kwargs = {**kwargs, name: self.through(site + INPUT, kwargs[name])}
            return self.through(site, plain(*args, **kwargs))

        return call


def _first(value: Any) -> mx.array | None:
    if isinstance(value, mx.array):
        return value if mx.issubdtype(value.dtype, mx.floating) else None
    return _first(value[0]) if isinstance(value, tuple | list) and value else None


def _with_first(value: Any, new: mx.array) -> Any:
    if isinstance(value, mx.array):
        return new
    return type(value)([_with_first(value[0], new), *value[1:]])


@contextlib.contextmanager
def watching(module: nn.Module, corrections: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
    """Record every submodule of MODULE that is called; the sites are filled in as this ends."""
    watch, sites = Watch(corrections), dict[str, Array]()
    inner = each_called_as(module, lambda path, it: bool(path) and callable(it), watch.calling)
    with inner:
        yield sites
        sites |= {site: from_mlx(array) for site, array in watch.seen.items()}
