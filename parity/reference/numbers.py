"""The numbers that a source computes with besides its weights, such as scales of attention and epsilons."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ...converters.models import Model, Signature
from ..probes.probes import Probe
from .reference import float32_module, module_outputs


class NumbersSeen(TorchFunctionMode):
    """Notes every Python number among the arguments, and tensors of one element.

    Attributes:
        found: them, and their reciprocals, by which a converter multiplies instead.

    >>> with NumbersSeen() as seen:
    ...     _ = torch.ones(2) * 0.1
    >>> sorted(seen.found)
    [0.1, 10.0]
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: set[float] = set()

    def note(self, value: Any) -> None:
        """Note VALUE if it is a number."""
        if isinstance(value, torch.Tensor) and value.numel() == 1 and value.is_floating_point():
            value = float(value.detach())
        if isinstance(value, float) and math.isfinite(value) and value:
            self.found |= {value, 1 / value}

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call FUNCTION, its numbers noted."""
        with torch._C.DisableTorchFunction():
            for leaf in tree_leaves((args, kwargs or {})):
                self.note(leaf)
            if function is functional.scaled_dot_product_attention:
                self.note(args[0].shape[-1] ** -0.5)  # its scale where none is given
        return function(*args, **(kwargs or {}))


def numbers_of(model: Model, probe: Probe) -> frozenset[float]:
    """Return the numbers that MODEL computes with on PROBE, in float32."""
    return numbers_in(float32_module(model), model.signature, probe)


def numbers_in(module: nn.Module, signature: Signature, probe: Probe) -> frozenset[float]:
    """Return the numbers that MODULE computes with on PROBE."""
    with NumbersSeen() as seen:
        module_outputs(module, signature, [probe], "float32")
    for tensor in (*module.parameters(), *module.buffers()):
        seen.note(tensor)
    return frozenset(seen.found)
