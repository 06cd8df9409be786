"""Captures of modules that were recorded before in this process: the graph is kept, never a weight.

What a graph depends on is described: classes, settings, computed buffers, names and shapes of weights,
inputs. Recording one takes seconds; comparing descriptions takes none.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from types import FunctionType
from typing import Any, Final, cast

import torch
from torch import nn

from .captured import Captured
from .capturing import capture_torch, tensors_of
from .exporting import Dynamic
from .parameters import canonical_names
from .recording.recorded import Recording

MOST: Final = 8  # recordings that are kept
PLAIN: Final = (bool, int, float, str, type(None), torch.dtype, FunctionType)
OWN: Final = frozenset({"_parameters", "_buffers", "_modules"})  # described by their names
KEPT: Final[OrderedDict[Hashable, tuple[Recording, Callable[[], Recording] | None]]] = OrderedDict()


def capture_once(
    module: nn.Module,
    *,
    inputs: Mapping[str, Any],
    dynamic: Dynamic | None = None,
    passes: tuple[str, ...] | None = None,
) -> Captured:
    """Return what ``capture_torch`` does, by an earlier recording of a module like MODULE if there is one.

    Args:
        module: built from a configuration by a library's class; its code stays as it is.
        inputs: keyword arguments of ``forward``.
        dynamic: input -> axis -> name of its dimension.
        passes: see ``capture_torch``.

    Raises:
        UnsupportedError: see ``capture_torch``.
    """
    key = (*described(module), *shapes_of(inputs), json.dumps(dynamic, sort_keys=True), passes)
    if key not in KEPT:
        captured = capture_torch(module, inputs=inputs, dynamic=dynamic, passes=passes)
        if not captured.recording.by_values:
            KEPT[key] = captured.recording, captured.other
        while len(KEPT) > MOST:
            KEPT.popitem(last=False)
        return captured
    KEPT.move_to_end(key)
    recording, other = KEPT[key]
    return Captured(recording, tensors_of(module.state_dict(keep_vars=True)), other)


def described(module: nn.Module) -> Iterator[Hashable]:
    """Yield all of MODULE that its graph depends on: no weight's values, but every other one's."""
    state = module.state_dict(keep_vars=True)
    firsts = canonical_names(state)
    for path, child in module.named_modules():
        yield path, type(child)
        others = vars(child).keys() - OWN
        yield from ((name, value_of(vars(child)[name])) for name in sorted(others))
    for name, tensor in state.items():
        yield name, firsts[name], tensor.shape, tensor.dtype, tensor.requires_grad
    for name, buffer in module.named_buffers():
        yield name, None if name in state else value_of(buffer)
    yield torch.get_default_dtype()


def value_of(value: Any) -> Hashable:
    """Return what tells VALUE, an attribute of a module, from others.

    Of an object of no known kind it is the class: a library's class makes such from its configuration.

    >>> value_of((2, "same")) == value_of([2, "same"]), value_of(1e-5) == value_of(1e-6)
    (False, False)
    """
    if isinstance(value, PLAIN):
        return type(value), value
    if isinstance(value, tuple | list):
        return type(value), tuple(map(value_of, value))
    if isinstance(value, Mapping):
        return type(value), tuple((repr(key), value_of(it)) for key, it in value.items())
    if isinstance(value, torch.Tensor):
        data = value.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy()
        return value.shape, value.dtype, hashlib.sha256(data.tobytes()).hexdigest()
    if hasattr(value, "to_dict"):
        text = json.dumps(value.to_dict(), sort_keys=True, default=repr)
        return text, getattr(value, "_attn_implementation", None)
    return cast(Hashable, type(value))


def shapes_of(inputs: Mapping[str, Any]) -> Iterator[Hashable]:
    """Yield names, dtypes and shapes of INPUTS, and those that are constants themselves."""
    for name, value in inputs.items():
        is_array = hasattr(value, "shape")
        yield (name, *((value.shape, value.dtype) if is_array else (repr(value),)))
