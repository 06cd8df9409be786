"""Modules in 16 bits that ask for float32 by name, such as ``mask.float()``: in 16 bits throughout.

A library's module that does so goes back to 16 bits by itself, and is left alone. One that does not stops where
it multiplies one by the other.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

WINDOWS: Final = ("bartlett", "blackman", "hamming", "hann", "kaiser")
# What makes numbers in floating point where no dtype is given; and what does so of such numbers alone.
MAKING: Final = frozenset(
    {torch.empty, torch.eye, torch.linspace, torch.logspace, torch.ones, torch.rand, torch.randn}
    | {torch.zeros, *(getattr(torch, f"{it}_window") for it in WINDOWS)}
)
MAKING_LIKE: Final = frozenset({torch.arange, torch.full})
# PyTorch's words for a dtype that its CPU lacks in an operation, those of its Fourier transforms last.
LACKING: Final = ("not implemented for", "support tensors of type", "Unsupported dtype")


class Asked(TorchFunctionMode):
    """Answer every request for float32 with DTYPE; what PyTorch's CPU lacks in it is computed in float32 and rounded.

    >>> with Asked(torch.float16):
    ...     torch.ones(1, dtype=torch.int64).float().dtype
    torch.float16
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call FUNCTION with float32 among its arguments replaced."""
        if function is torch.Tensor.float:
            function, args = torch.Tensor.to, (args[0], self.dtype)
        named = {key: self._answered(value) for key, value in (kwargs or {}).items()}
        if function in MAKING or (
            function in MAKING_LIKE and any(isinstance(it, float) for it in args)
        ):
            named.setdefault("dtype", self.dtype)  # a recorded graph is run again without this mode
        given = [*map(self._answered, args)]
        try:
            found = function(*given, **named)
            # There are no complex numbers of 16 bits to compute with: what is made of wider ones is rounded.
            return tree_map_only(torch.Tensor, self._narrowed, found) if of_complex(args) else found
        except RuntimeError as error:
            lacks = any(words in str(error) for words in LACKING)
            if not lacks or function.__name__.endswith("_"):  # in place
                raise
            wide, all_named = tree_map_only(torch.Tensor, widened, (given, named))
            found = function(*wide, **all_named)
            return tree_map_only(torch.Tensor, self._narrowed, found)

    def _narrowed(self, found: torch.Tensor) -> torch.Tensor:
        if found.is_complex():
            real, imaginary = (it.to(self.dtype).float() for it in (found.real, found.imag))
            return torch.complex(real, imaginary)
        return found.to(self.dtype) if found.is_floating_point() else found

    def _answered(self, value: Any) -> Any:
        return self.dtype if value is torch.float32 else value


def of_complex(given: tuple[Any, ...]) -> bool:
    """Say whether a tensor GIVEN has complex numbers."""
    return any(isinstance(it, torch.Tensor) and it.is_complex() for it in given)


def widened(given: torch.Tensor) -> torch.Tensor:
    """Return what is GIVEN in float32 where it is in floating point, as PyTorch's GPUs compute what is in 16 bits."""
    return given.float() if given.is_floating_point() else given


@contextmanager
def asked_as(dtype: torch.dtype) -> Iterator[None]:
    """Let what asks for float32, or for no dtype, get DTYPE inside the block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with Asked(dtype):
            yield
    finally:
        torch.set_default_dtype(before)


def throughout(module: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """Return MODULE, changed so that all that it holds and computes in floating point is in DTYPE."""
    own = module.forward

    @functools.wraps(own)
    def forward(*given: Any, **named: Any) -> Any:
        with asked_as(dtype):
            return own(*given, **named)

    module.to(dtype)
    module.forward = forward
    return module
