"""What the linear layers of a native ``mlx.nn`` module are given, summed up while it runs."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any

import mlx.core as mx
from mlx import nn

from ...common.arrays import from_mlx
from ...values import Array
from .sites import Call, each_called_as


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

    def calling(self, path: str) -> Call:
        """Return how the layer PATH is called: what it is given is added first."""

        def call(plain: Call, x: mx.array, *args: Any, **kwargs: Any) -> Any:
            self.add(path, x)
            return plain(x, *args, **kwargs)

        return call

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
    inputs = Inputs()
    with each_called_as(module, lambda path, it: path in paths and is_linear(it), inputs.calling):
        yield inputs
