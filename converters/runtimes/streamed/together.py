"""Several runs of one PyTorch module that share each reading of its weights."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Final

import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from .readings import Result

READINGS: Final = "_weighbridge_readings"  # the attribute by which a module has its own


def together(module: nn.Module, runs: Sequence[Callable[[], Result]]) -> list[Result]:
    """Return what each of RUNS of MODULE returns; they share each reading of its weights.

    They run in threads of their own, under the modes and the kind of gradients of this one.
    """
    readings = vars(module).get(READINGS)
    if readings is None:
        return [run() for run in runs]
    try:
        results: list[Result] = readings.run([as_here(run) for run in runs])
    finally:
        readings.forget()
    return results


def as_here(run: Callable[[], Result]) -> Callable[[], Result]:
    """Return RUN so that it does in another thread what it would do in this one."""
    functions: Any = _get_current_function_mode_stack
    modes = [*_get_current_dispatch_mode_stack(), *functions()]
    gradients, here = torch.is_grad_enabled(), threading.get_ident()

    def elsewhere() -> Result:
        if threading.get_ident() == here:
            return run()
        with ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(gradients))
            for mode in modes:
                stack.enter_context(mode)
            return run()

    return elsewhere
