"""What the linear layers of a native ``mlx.nn`` module are given, summed up while it runs."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any

import mlx.core as mx
from mlx import nn

from ...common.arrays import from_mlx
from ...values import Array


class Inputs:
    """Sums of products of inputs, ``x.T @ x``, by path of the layer.

    Layers that are given the same array, as the projections of an attention are, share one sum.
    """

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}  # path -> the path whose sum it shares, maybe its own
        self._sums: dict[str, mx.array] = {}
        self._given: tuple[mx.array, str] | None = None

    def add(self, path: str, given: mx.array) -> None:
        """Add what the layer PATH is GIVEN, ``(..., columns)``."""
        before, self._given = self._given, (given, path)
        if before and before[0] is given:
            self._given = before
        owner = self._owners.setdefault(path, self._given[1])
        if owner == path:
            rows = given.reshape(-1, given.shape[-1]).astype(mx.float32)
            self._sums[path] = self._sums.get(path, 0) + rows.T @ rows
            mx.eval(self._sums[path])

    def products(self) -> dict[str, Array]:
        """Return the sums, float32 ``(columns, columns)``, by path; of one input the same array."""
        sums = {path: from_mlx(array) for path, array in self._sums.items()}
        return {path: sums[owner] for path, owner in self._owners.items()}


def is_linear(layer: Any) -> bool:
    """Say whether the inputs of LAYER are rows that its weight multiplies, and nothing else."""
    return isinstance(layer, nn.Linear)


@contextlib.contextmanager
def summing(module: nn.Module, paths: Collection[str]) -> Iterator[Inputs]:
    """Sum up what those of PATHS are given that are linear layers of MODULE, while this lasts."""
    inputs, kinds = Inputs(), dict[int, tuple[nn.Module, type]]()
    for path, layer in module.named_modules():
        if path in paths and is_linear(layer) and id(layer) not in kinds:
            kinds[id(layer)] = layer, type(layer)
            object.__setattr__(layer, "__class__", _summed(path, type(layer), inputs))
    try:
        yield inputs
    finally:
        for layer, kind in kinds.values():
            object.__setattr__(layer, "__class__", kind)


def _summed(path: str, kind: type[nn.Module], inputs: Inputs) -> type[nn.Module]:
    """Return a class like KIND whose calls are added to INPUTS as those of PATH."""

    def call(self: Any, x: mx.array, *args: Any, **kwargs: Any) -> Any:
        inputs.add(path, x)
        return kind.__call__(self, x, *args, **kwargs)

    return type(kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__})
