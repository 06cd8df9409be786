"""Modes in which a source's own code computes in float64, and the census that proves it.

``module.double()`` is not enough. Libraries ask for float32 by name in norms, rotary embeddings and
softmax, and the error that leaves is as large as the one to be measured. :class:`TrueFloat64`
answers every such request with float64, and a census of all dtypes proves that none was missed.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ...errors import UnsupportedError
from ..goldens.rounding import parse_storage

NARROW: Final = frozenset((torch.float32, torch.float16, torch.bfloat16))
CASTS: Final = {
    torch.Tensor.float: torch.Tensor.double,
    torch.Tensor.half: torch.Tensor.double,
    torch.Tensor.bfloat16: torch.Tensor.double,
}
HALF_MAX: Final = 65504.0


def _widen(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in NARROW else value


class TrueFloat64(TorchFunctionMode):
    """Answer every request for a narrower floating dtype with float64.

    >>> with TrueFloat64():
    ...     torch.ones(1, dtype=torch.float32).float().dtype
    torch.float64
    """

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call FUNCTION with every narrow dtype among its arguments replaced."""
        wide = {key: _widen(value) for key, value in (kwargs or {}).items()}
        return CASTS.get(function, function)(*map(_widen, args), **wide)


class RoundedConstants(TorchFunctionMode):
    """Round every Python number among the arguments through float16, as an ML program keeps them.

    What would vanish keeps the least magnitude (coremltools 9, passes/defs/quantization.py), and
    what would overflow, a mask's sentinel, stays as it is.

    >>> with RoundedConstants():
    ...     (torch.ones(1, dtype=torch.float64) * 0.1).item()
    0.0999755859375
    """

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call FUNCTION with rounded constants."""
        named = {key: _half(value) for key, value in (kwargs or {}).items()}
        return function(*map(_half, args), **named)


def _half(value: Any) -> Any:
    if not isinstance(value, float) or not abs(value) <= HALF_MAX:
        return value
    rounded = float(np.float16(value))
    return math.copysign(2.0**-24, value) if value and not rounded else rounded


def constants_of(storage: str) -> contextlib.AbstractContextManager[object]:
    """Return the mode in which a source runs whose target keeps its weights in STORAGE."""
    return RoundedConstants() if parse_storage(storage).constants else contextlib.nullcontext()


class DtypeCensus(TorchDispatchMode):
    """Count the operations that read or make a tensor narrower than float64.

    Attributes:
        narrow: how often each ``operation: dtype`` was seen.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.narrow: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run FUNCTION and look at the dtypes on both of its sides."""
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, result)):
            if isinstance(leaf, torch.Tensor) and leaf.dtype in NARROW:
                self.narrow[f"{function}: {str(leaf.dtype).removeprefix('torch.')}"] += 1
        return result


@contextlib.contextmanager
def default_float64() -> Iterator[None]:
    """Create tensors without a named dtype in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def true_float64() -> Iterator[DtypeCensus]:
    """Compute in float64, and prove it on leaving.

    Raises:
        UnsupportedError: some operation used a narrower dtype all the same; it is named.
    """
    census = DtypeCensus()
    with torch.no_grad(), default_float64(), census, TrueFloat64():
        yield census
    if census.narrow:
        worst = ", ".join(f"{what} ({count}x)" for what, count in census.narrow.most_common(5))
        raise UnsupportedError(
            f"the float64 reference would not be one: {worst}. The source makes these tensors in a"
            " way that Weighbridge cannot widen; build the module with float64 constants"
        )
