"""A short text run as if it stood far on in a long one: its positions begin at an offset.

Nothing stands before it: a switch of rotary scaling or a row of a position table shows, a window does not.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from ...errors import UnsupportedError
from ..common.arrays import from_mlx, from_torch, to_mlx, to_torch
from ..common.memory import pass_on_shortage
from ..common.users_code import described
from ..values import Array
from .base import Arrays


class NothingBefore:
    """A cache of keys and values for an mlx-lm class: it keeps none, and begins at an offset.

    Attributes:
        offset: the position of the next token.
    """

    def __init__(self, offset: int) -> None:
        self.offset = offset

    def update_and_fetch(self, keys: Any, values: Any) -> tuple[Any, Any]:
        """Return KEYS and VALUES, of shape ``(batch, heads, positions, width)``, as they are."""
        self.offset += keys.shape[2]
        return keys, values

    def __getitem__(self, index: int) -> Any:
        """Refuse a layer whose cache has parts: a state, or several caches."""
        raise UnsupportedError("its layers have a cache of another kind, which begins at 0")

    def make_mask(
        self, length: int, *, return_array: bool = False, window_size: int | None = None
    ) -> Any:
        """Return the causal mask of LENGTH tokens that have nothing before them."""
        if return_array or (window_size and length > window_size):
            from mlx_lm.models.base import create_causal_mask

            return create_causal_mask(length, window_size=window_size)
        return "causal"


def torch_at(
    module: Any, inputs: Mapping[str, Any], outputs: tuple[str, ...], offset: int
) -> dict[str, Any]:
    """Return OUTPUTS of the torch MODULE on INPUTS whose positions begin at OFFSET.

    Args:
        module: of transformers, that takes ``position_ids``.
        inputs: tensors by name; token ids ``(batch, positions)``.
        outputs: their names.
        offset: the first position.

    Raises:
        UnsupportedError: the module takes no positions.
    """
    import torch

    from .torch import call

    if not offset:
        return dict(call(module, inputs, outputs))
    name = "position_ids"
    if name not in inspect.signature(module.forward).parameters or name in inputs:
        raise UnsupportedError("it takes no positions")
    shape = next(tensor.shape for tensor in inputs.values() if tensor.ndim == 2)
    places = (torch.arange(shape[1]) + offset).expand(shape)
    return dict(call(module, {**inputs, name: places}, outputs))


def run_at(runner: Any, inputs: Arrays, offset: int) -> dict[str, Array]:
    """Return the outputs of RUNNER on INPUTS whose positions begin at OFFSET.

    Raises:
        UnsupportedError: only classes of transformers and mlx-lm can begin elsewhere than at 0.
    """
    if not offset:
        found: dict[str, Array] = runner.run(inputs)
        return found
    at = {"torch": from_torch_at, "mlx": from_mlx_at}.get(runner.runtime)
    if at is None:
        raise UnsupportedError("a saved program begins at position 0")
    names = tuple(port.name for port in runner.signature.outputs)
    try:
        return at(runner, inputs, names, offset)
    except UnsupportedError:
        raise
    except Exception as error:
        pass_on_shortage(error)
        raise UnsupportedError(f"it does not begin there: {described(error)}") from error


def from_torch_at(
    runner: Any, inputs: Arrays, names: tuple[str, ...], offset: int
) -> dict[str, Array]:
    """Return what ``run_at`` does, of a runner in PyTorch."""
    import torch

    tensors = {name: to_torch(array) for name, array in inputs.items()}
    with torch.no_grad():
        found = torch_at(runner.module, tensors, names, offset)
    return {name: from_torch(tensor) for name, tensor in found.items()}


def from_mlx_at(
    runner: Any, inputs: Arrays, names: tuple[str, ...], offset: int
) -> dict[str, Array]:
    """Return what ``run_at`` does, of a runner that has a class of mlx-lm."""
    from .mlx import name_outputs

    called = inspect.signature(type(runner.module).__call__).parameters
    if getattr(runner, "kind", "") != "library" or "cache" not in called or len(inputs) != 1:
        raise UnsupportedError("it is no class of mlx-lm, which alone begin where a cache ends")
    [ids] = inputs.values()
    caches = [NothingBefore(offset) for _ in runner.module.layers]
    result = runner.module(to_mlx(ids), cache=caches)
    found = name_outputs(result, runner.signature, runner.name)
    return {name: from_mlx(found[name]) for name in names}
