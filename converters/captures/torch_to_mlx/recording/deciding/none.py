"""Whether rows that are none change nothing: a module that skips them held against its recording, which does not.

The recording takes masks to show something (see :mod:`some`). Module and recording are run in torch with these masks
emptied, all and some of them; values and gradients must be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from .....common.memory import pass_on_shortage
from ..arguments import leaves, mapped
from ..sources import writes
from .emptied import Emptied
from .replayed import replayed

Call = Callable[[Emptied, Any, Any], Any]


def skips_nothing(
    program: ExportedProgram, module: torch.nn.Module, tensors: Mapping[str, Any]
) -> bool:
    """Tell whether PROGRAM, recorded of MODULE with TENSORS, gives what MODULE gives where masks show nothing."""
    try:
        return _alike(program, _Runs(module, tensors))
    except Exception as error:  # a module says in any way that it cannot be run so
        pass_on_shortage(error)
        return False


def _alike(program: ExportedProgram, runs: _Runs) -> bool:
    def recorded(emptied: Emptied, inputs: Any, state: Any) -> Any:
        found = replayed(program, leaves(inputs), state, emptied.at)
        return found[len(writes(program)) :]

    first = Emptied()
    runs.of(first, runs.called)
    for which in (None, 0, 1):
        own, other = Emptied(first.lines, which), Emptied(first.lines, which)
        wanted, found = runs.of(own, runs.called), runs.of(other, recorded)
        if own.undecided or len(wanted) != len(found) or not all(map(_close, wanted, found)):
            return False
    return True


@dataclass(frozen=True)
class _Runs:
    """A module and its inputs, run the same way each time."""

    module: torch.nn.Module
    tensors: Mapping[str, Any]

    def called(self, _: Emptied, inputs: Mapping[str, Any], state: Mapping[str, Any]) -> Any:
        """Return what the module gives."""
        return torch.func.functional_call(self.module, dict(state), (), dict(inputs))

    def of(self, emptied: Emptied, call: Call) -> list[torch.Tensor]:
        """Return the values that CALL gives, what it leaves in buffers, and gradients."""
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(0)
            state, inputs = self._state(), mapped(lambda _, value: _leaf(value), self.tensors)
            with emptied:
                values = _tensors(call(emptied, inputs, state))
                emptied.at(None)
                gradients = _gradients(values, _tensors([state, inputs]))
        return [*values, *(it for it in state.values() if not it.requires_grad), *gradients]

    def _state(self) -> dict[str, torch.Tensor]:
        """Return parameters, others where these are all one number, and copies of buffers."""
        made: dict[int, torch.Tensor] = {}
        named = self.module.named_parameters(remove_duplicate=False)
        state = {name: made.setdefault(id(it), _parameter(it)) for name, it in named}
        buffers = self.module.named_buffers(remove_duplicate=False)
        return state | {name: it.detach().clone() for name, it in buffers}


def _parameter(value: torch.Tensor) -> torch.Tensor:
    own = value.detach()
    if value.is_floating_point() and value.numel() and bool((own == own.flatten()[0]).all()):
        own = torch.randn_like(own)  # a copy without weights, or a gate that hides what it gates
    return own.requires_grad_(value.requires_grad)


def _leaf(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(value.is_floating_point())


def _gradients(values: list[torch.Tensor], taken: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the gradient of each of those TAKEN that may have one, of VALUES with weights that are drawn."""
    chosen = [*{id(it): it for it in taken if it.requires_grad}.values()]
    drawn = [(it, torch.randn(it.shape).to(it.dtype)) for it in values]
    flows = [(it, weight) for it, weight in drawn if it.requires_grad]
    if not chosen or not flows:
        return [torch.zeros_like(it) for it in chosen]
    results, weights = zip(*flows, strict=True)
    found: Any = torch.autograd.grad(results, chosen, weights, allow_unused=True)
    pairs = zip(found, chosen, strict=True)
    return [torch.zeros_like(it) if gradient is None else gradient for gradient, it in pairs]


def _tensors(value: Any) -> list[torch.Tensor]:
    return [it for it in pytree.tree_leaves(value) if isinstance(it, torch.Tensor)]


def _close(own: torch.Tensor, found: torch.Tensor) -> bool:
    return own.shape == found.shape and torch.allclose(own, found, 1e-4, 1e-5)
