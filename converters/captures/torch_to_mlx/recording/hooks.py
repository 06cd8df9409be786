"""Hooks that change gradients: ``torch.export`` leaves them out, so they are refused by name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final
from unittest import mock

import torch
from torch.nn.modules import module as modules

from .....errors import UnsupportedError
from .places import line_of_caller

_ADVICE: Final = "remove it before capturing, or write it into a torch.autograd.Function"
_BACKWARD: Final = ("_backward_hooks", "_backward_pre_hooks")
_OF_TENSORS: Final = ("_backward_hooks", "_post_accumulate_grad_hooks")


def refuse_hooks(module: torch.nn.Module) -> None:
    """Refuse a MODULE with hooks that run in the backward pass; those of the forward are recorded.

    Raises:
        UnsupportedError: backward hooks of a module, of a parameter or of all modules; all are listed.
    """
    found = [
        *(f"all modules: {_names(getattr(modules, f'_global{name}'))}" for name in _global_kinds()),
        *(
            f"module {path or type(child).__name__}: {_names(getattr(child, kind))}"
            for path, child in module.named_modules()
            for kind in _BACKWARD
            if getattr(child, kind)
        ),
        *hooks_of_parameters(module),
    ]
    if found:
        raise UnsupportedError(f"hooks of the backward pass cannot be recorded: {_ADVICE}", found)


def hooks_of_parameters(module: torch.nn.Module) -> Iterator[str]:
    """Yield the parameters of MODULE whose gradient runs hooks, each with these; a copy of it has none."""
    for path, parameter in module.named_parameters():
        for kind in _OF_TENSORS:
            if hooks := getattr(parameter, kind):
                yield f"parameter {path}: {_names(hooks)}"


def _global_kinds() -> list[str]:
    return [name for name in _BACKWARD if getattr(modules, f"_global{name}")]


def _names(hooks: Any) -> str:
    return ", ".join(getattr(hook, "__qualname__", repr(hook)) for hook in hooks.values())


@contextlib.contextmanager
def hooks_refused() -> Iterator[None]:
    """Refuse hooks that tensors are given in the block.

    Raises:
        UnsupportedError: with the line that registers one.
    """

    def refuse(_tensor: torch.Tensor, _hook: Any) -> None:
        raise UnsupportedError(
            f"a hook of a tensor's gradient cannot be recorded: {_ADVICE} ({line_of_caller()})"
        )

    with contextlib.ExitStack() as stack:
        for name in ("register_hook", "register_post_accumulate_grad_hook"):
            stack.enter_context(mock.patch.object(torch.Tensor, name, refuse))
        yield
