"""Derivatives that a forward takes by ``torch.func``: noted while it is recorded, so that it is recorded below autograd.

There they are operations, and can be differentiated again. Those that it takes by ``torch.autograd.grad`` would be
cut off what comes after: torch detaches what they were saved from.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
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
_SWITCHES: Final = (
    (torch.no_grad, "__enter__"),
    (torch.enable_grad, "__enter__"),
    (torch.inference_mode, "__enter__"),
    (torch.set_grad_enabled, "__init__"),
)
_TORCH: Final = Path(torch.__file__).parent


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
    """Refuse in the block derivatives that are none of ``torch.func``'s, and gradients switched on or off.

    Below autograd nothing of the graph would say where gradients are off.

    Raises:
        UnsupportedError: as soon as there is one.
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

    def switched(plain: Callable[..., Any]) -> Callable[..., Any]:
        def switch(*args: Any, **kwargs: Any) -> Any:
            if not _within_torch(sys._getframe(1)):
                raise UnsupportedError("forward switches gradients, and takes some by torch.func")
            return plain(*args, **kwargs)

        return switch

    with contextlib.ExitStack() as stack:
        for name in ("grad", "backward"):
            stack.enter_context(mock.patch.object(torch.autograd, name, grad))
        for kind, name in _SWITCHES:
            changed = switched(getattr(kind, name))
            stack.enter_context(mock.patch.object(kind, name, changed))
        yield


def _within_torch(frame: FrameType | None) -> bool:
    """Tell whether FRAME is torch's own, that of a stack of contexts passed over; what torch decorates is not."""
    while frame is not None and frame.f_code.co_filename == contextlib.__file__:
        frame = frame.f_back
    path = Path(frame.f_code.co_filename if frame else "")
    return path.is_relative_to(_TORCH) and path.name != "_contextlib.py"
