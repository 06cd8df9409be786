"""Recordings kept on disk: the second start of a run records nothing.

A recording follows from code, settings, shapes and versions, and is found by all of these. A module with code
or with a setting of which that cannot be told is recorded every time: a wrong graph is worse than a second.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import distributions
from typing import Any, Final

import mlx.core as mx
import torch
from torch import nn

from ....common import cache as answers
from ....common.memory import pass_on_shortage
from ....common.users_code import OURS
from ..operations.registry import handlers
from ..parameters import canonical_names
from ..recording.arguments import leaves
from ..recording.recorded import Recording
from .known import UnknownError, is_known, own_text
from .libraries import check_package, places_of
from .telling import Telling, known_function, methods_of_tensors
from .written import UnwritableError, read, written

KIND: Final = "capture"
FUNCTIONS: Final = frozenset({"torch.functional", "torch.nn.functional"})  # that all modules call
OWN: Final = frozenset({"_parameters", "_buffers", "_modules"})  # told by their names


def recall(key: Any) -> Recording | None:
    """Return what is kept for KEY, which :func:`key_of` made; none for no key."""
    found = None if key is None else answers.recall(KIND, key)
    if found is None:
        return None
    with suppress(Exception):  # of any kind: what cannot be read is recorded again
        return read(found)
    return None


def keep(recording: Recording, key: Any) -> None:
    """Keep RECORDING for KEY, if it has a form in JSON and depends on nothing else."""
    if key is not None and not recording.by_values:
        with suppress(UnwritableError):
            answers.keep(KIND, key, written(recording))


def key_of(module: nn.Module, inputs: Mapping[str, Any], dynamic: Any, passes: Any) -> Any:
    """Return all that the recording of MODULE on INPUTS depends on; ``None`` if that cannot be told."""
    if answers.folder() is None:
        return None
    telling = Telling(parts=module.modules())
    try:
        parts = [*_of_module(module, telling), *_of_inputs(inputs, telling)]
        parts += [telling.settings(dynamic), telling.settings(passes), *_surroundings(telling)]
    except Exception as error:  # of any kind: what cannot be told is recorded
        pass_on_shortage(error)
        return None
    return [hashlib.sha256("\n".join(parts).encode()).hexdigest()]


def _of_module(module: nn.Module, telling: Telling) -> Iterator[str]:
    """Tell all of MODULE that its graph depends on: no weight's values, but every other one's."""
    state = module.state_dict(keep_vars=True)
    firsts = canonical_names(state)
    for path, child in module.named_modules():
        yield f"{path} {telling.kind(type(child))}"
        yield telling.settings({**child._modules})  # which may be the same as others
        others = sorted(vars(child).keys() - OWN)
        yield from (f"{name} {telling.settings(vars(child)[name])}" for name in others)
    for name, tensor in state.items():
        about = (firsts[name], tuple(tensor.shape), tensor.stride(), tensor.dtype)
        yield repr((name, *about, telling.kind(type(tensor)), tensor.requires_grad))
        yield telling.settings(vars(tensor))
    for name, buffer in module.named_buffers():
        yield f"{name} {'kept' if name in state else telling.settings(buffer)}"


def _of_inputs(inputs: Mapping[str, Any], telling: Telling) -> Iterator[str]:
    for name, value in leaves(inputs).items():
        is_array = hasattr(value, "shape") and hasattr(value, "dtype")
        about = repr((tuple(value.shape), value.dtype)) if is_array else telling.settings(value)
        yield f"{name} {type(value).__name__} {about}"


def _surroundings(telling: Telling) -> Iterator[str]:
    """Tell versions, our own code, and what else is the same for every module of a process."""
    yield _versions()
    yield repr((torch.get_default_dtype(), _autocasts(), mx.default_device()))
    _check_surroundings()
    yield own_text()
    for name, operation in sorted(handlers().items()):
        function = operation.function
        tell = known_function if is_known(function) else telling.function
        yield f"{name} {tell(function)} {operation.promote}"
    modules = {it for it in telling.modules if it.partition(".")[0] != OURS} | FUNCTIONS
    for package in sorted({name.partition(".")[0] for name in modules}):
        check_package(package)
    yield from places_of(modules)
    yield from methods_of_tensors()


def _autocasts() -> list[Any]:
    devices = [it for it in ("cpu", "cuda") if torch.is_autocast_enabled(it)]
    return [(it, torch.get_autocast_dtype(it)) for it in devices]


def _check_surroundings() -> None:
    """Refuse what changes every call of PyTorch's or of every module.

    Raises:
        UnknownError: there is a hook of all modules or a mode of functions.
    """
    hooks = [it for name, it in vars(nn.modules.module).items() if name.startswith("_global_")]
    modes = (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack())
    if any(hooks) or any(modes):
        raise UnknownError("surroundings")


@cache
def _versions() -> str:
    """Return what is installed: code is known by its version."""
    return repr([sys.version, sorted({(it.name, it.version) for it in distributions()}, key=repr)])
