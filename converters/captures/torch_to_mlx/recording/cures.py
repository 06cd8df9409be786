"""What stops or misleads ``torch.export`` and can be put right without changing a result, for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.grad_mode import inference_mode

_DATA: Final = torch.Tensor.data


def _enter(block: Any) -> None:
    """Enter an inference block as ``torch.no_grad``, which recording knows: its gradient stops too."""
    block.grad_was_on = torch.is_grad_enabled()
    torch._C._set_grad_enabled(block.grad_was_on and not block.mode)


def _leave(block: Any, *_error: object) -> None:
    torch._C._set_grad_enabled(block.grad_was_on)


def _read_data(tensor: torch.Tensor) -> Any:
    """Return ``tensor.data``; that of a tensor being recorded is ``tensor.detach()``, which is recorded."""
    if isinstance(tensor, FakeTensor):
        return tensor.detach()
    return _DATA.__get__(tensor)  # type: ignore[attr-defined]


def _write_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
    _DATA.__set__(tensor, value)  # type: ignore[attr-defined]


@contextlib.contextmanager
def cured() -> Iterator[None]:
    """Let inference blocks and ``.data`` be recorded in the block as what they mean."""
    with contextlib.ExitStack() as stack:
        for name, function in (("__enter__", _enter), ("__exit__", _leave)):
            stack.enter_context(mock.patch.object(inference_mode, name, function))
        stack.enter_context(
            mock.patch.object(torch.Tensor, "data", property(_read_data, _write_data), create=True)
        )
        yield
