"""What a source computes from its weights alone, such as a table of positions looked up at fixed places.

A converter computes it ahead of time: it is a constant of the package and no tensor of the source.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import count
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from ...converters.common.arrays import from_torch
from ...converters.models import Signature
from ...converters.runtimes.torch import call
from ...converters.values import Array
from ..probes.probes import Probe
from .reference import feed

SHAPES: Final = 3  # of inputs, with each of which the source is run once
INPUT: Final = None  # among the names of what a value depends on


Origins = frozenset[str | None]


class Computed(NamedTuple):
    """A value that depends on no input of the source, but for its sizes.

    Attributes:
        value: the numbers.
        parts: the tensors that it is computed from, by the module's names.
    """

    value: Array
    parts: tuple[str, ...]


class FromWeights(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the numbers of some sizes that depend on no input.

    What depends on one is no constant, whatever its value is: a trace that has kept it is wrong.

    Attributes:
        found: them, by the operation and what it was computed from.

    >>> weight, given = torch.arange(3.0), torch.ones(3)
    >>> with FromWeights({"w": weight}, [given], sizes={2, 3}) as seen:
    ...     _ = weight[1:] * 2, weight * given
    >>> list(seen.found)
    ['slice(w)', 'mul(w)']
    """

    def __init__(
        self,
        weights: Mapping[str, torch.Tensor],
        inputs: Sequence[torch.Tensor],
        sizes: Collection[int],
        found: dict[str, Computed] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = {} if found is None else found
        self._sizes = frozenset(sizes)
        # What a tensor depends on, and what the memory does that it shares with views of it.
        self._origins: Any = WeakIdKeyDictionary()
        self._written: dict[StorageWeakRef, Origins] = {}
        self._weights = {place(it) for it in weights.values()}
        self._read: Origins = frozenset()  # as numbers of Python, which nobody can follow
        for name, tensor in weights.items():
            self._origins[tensor] = frozenset({name})
        for tensor in inputs:
            self._set(tensor, frozenset({INPUT}))

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run FUNCTION, what it makes noted."""
        result = function(*args, **(kwargs or {}))
        given = [it for it in tree_leaves((args, kwargs or {})) if isinstance(it, torch.Tensor)]
        origins = self._read.union(*map(self._get, given))
        if isinstance(result, int | float) and not isinstance(result, bool):
            self._read |= origins & {INPUT}
        for made in tree_leaves(result):
            if isinstance(made, torch.Tensor):
                self._set(made, origins | self._get(made))
                self._note(function.overloadpacket.__name__, made)
        return result

    def _get(self, tensor: torch.Tensor) -> Origins:
        own: Origins = self._origins.get(tensor, frozenset())
        return own | self._written.get(place(tensor), frozenset())

    def _set(self, tensor: torch.Tensor, origins: Origins) -> None:
        """Note the ORIGINS of TENSOR and of its views; of views of weights, which may lie together, an input."""
        self._origins[tensor] = origins
        where = place(tensor)
        shared = origins & {INPUT} if where in self._weights else origins
        self._written[where] = self._written.get(where, frozenset()) | shared

    def _note(self, name: str, made: torch.Tensor) -> None:
        origins = self._get(made)
        if INPUT in origins or made.numel() not in self._sizes or made.dtype == torch.bool:
            return
        parts = tuple(sorted(it for it in origins if it is not None))
        words = f"{name}({', '.join(parts)})"
        again = (f"{words}, number {number}" for number in count(2))
        free = (
            words if words not in self.found else next(it for it in again if it not in self.found)
        )
        self.found[free] = Computed(from_torch(made.detach().clone()), parts)


def place(tensor: torch.Tensor) -> StorageWeakRef:
    """Return what stands for the memory of TENSOR, the same for all views of it."""
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def computed_by(
    module: nn.Module,
    signature: Signature,
    probes: Sequence[Probe],
    sizes: Collection[int],
    dtype: str = "float32",
) -> dict[str, Computed]:
    """Return what MODULE, in DTYPE, computes from its weights alone, of as many numbers as in SIZES.

    Args:
        module: the source.
        signature: its inputs and outputs.
        probes: inputs; one of each of a few shapes is run.
        sizes: numbers of elements.
        dtype: of the module.
    """
    shapes = {tuple(it.inputs[port.name].shape for port in signature.inputs): it for it in probes}
    names = tuple(port.name for port in signature.outputs)
    weights = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    found: dict[str, Computed] = {}
    for probe in [*shapes.values()][:SHAPES]:
        inputs = feed(signature, probe, dtype)
        with torch.no_grad(), FromWeights(weights, [*inputs.values()], sizes, found):
            call(module, inputs, names)
    return found
