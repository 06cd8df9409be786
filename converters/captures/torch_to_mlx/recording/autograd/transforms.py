"""Derivatives that a forward takes by ``torch.func``: noted while it is recorded, so that it is recorded below autograd.

There they are operations, and can be differentiated again. Those that it takes by ``torch.autograd.grad`` would be
cut off what comes after: torch detaches what they were saved from.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Final
from unittest import mock

import torch
from torch._functorch import eager_transforms, vmap

from ......errors import UnsupportedError

_LEVELS: Final = (
    (eager_transforms, "grad_increment_nesting"),
    (eager_transforms, "jvp_increment_nesting"),
    (vmap, "vmap_increment_nesting"),
)


@contextlib.contextmanager
def transforms_noted() -> Iterator[list[str]]:
    """Note in the block which transforms of ``torch.func`` are entered."""
    noted: list[str] = []

    def noting(name: str, own: Callable[..., Any]) -> Callable[..., Any]:
        def entered(*args: Any, **kwargs: Any) -> Any:
            noted.append(name)
            return own(*args, **kwargs)

        return entered

    with contextlib.ExitStack() as stack:
        for module, name in _LEVELS:
            own = getattr(module, name)
            stack.enter_context(mock.patch.object(module, name, noting(name, own)))
        yield noted


@contextlib.contextmanager
def autograd_refused() -> Iterator[None]:
    """Refuse derivatives in the block that are none of ``torch.func``'s.

    Raises:
        UnsupportedError: as soon as one is taken.
    """
    own, inside = torch.autograd.grad, ContextVar("inside", default=False)

    def grad(*args: Any, **kwargs: Any) -> Any:
        by_transform = sys._getframe(1).f_code.co_filename == eager_transforms.__file__
        if not by_transform and not inside.get():  # torch calls it again from its own modes
            raise UnsupportedError("forward takes derivatives by torch.autograd, too")
        token = inside.set(True)
        try:
            return own(*args, **kwargs)
        finally:
            inside.reset(token)

    with (
        mock.patch.object(torch.autograd, "grad", grad),
        mock.patch.object(torch.autograd, "backward", grad),
    ):
        yield
