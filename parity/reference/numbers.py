"""The numbers that a source computes with besides its weights, such as scales of attention and epsilons."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ...converters.models import Model, Signature
from ..probes.probes import Probe
from .reference import float32_module, module_outputs

# Numbers in the formulas of functions, which converters write out.
MEANT: Final[Mapping[str, tuple[float, ...]]] = {
    "exp2": (math.log(2),),
    "gelu": (math.sqrt(2), math.sqrt(2 / math.pi), 0.044715),
    "log10": (math.log(10),),
    "log2": (math.log(2),),
}


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
            if function is functional.multi_head_attention_forward:
                self.note((args[3] // args[4]) ** -0.5)  # of its size and number of heads
            for number in MEANT.get(getattr(function, "__name__", ""), ()):
                self.note(number)
        return function(*args, **(kwargs or {}))


@contextmanager
def layers_written_out() -> Iterator[None]:
    """Let PyTorch compute its own transformer layers by the operations that they are made of, inside the block."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(value=False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(value=before)


def numbers_of(model: Model, probe: Probe) -> frozenset[float]:
    """Return the numbers that MODEL computes with on PROBE, in float32."""
    return numbers_in(float32_module(model), model.signature, probe)


def numbers_in(module: nn.Module, signature: Signature, probe: Probe) -> frozenset[float]:
    """Return the numbers that MODULE computes with on PROBE."""
    with NumbersSeen() as seen, layers_written_out():
        module_outputs(module, signature, [probe], "float32")
    for tensor in (*module.parameters(), *module.buffers()):
        seen.note(tensor)
    return frozenset(seen.found)
