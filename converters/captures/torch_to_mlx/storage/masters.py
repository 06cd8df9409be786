"""Float32 masters: a module recorded as it computes in 16 bits, on the parameters that it has.

The graph casts every parameter as it reads it, so gradients and updates are those of the masters.
Buffers that the module computes itself stay as they are, as in ``from_pretrained(dtype=...)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from .....errors import BadInputError, UnsupportedError
from ....runtimes.torch import DTYPES, cast
from ..dtypes import cast as array_in
from ..dtypes import mlx_dtype
from ..parameters import canonical_names
from ..recording.arguments import mapped
from ..recording.modes import without_weights
from ..recording.recorded import Recording
from .wiring import Wiring

COMPUTE: Final = ("float32", "float16", "bfloat16")


def narrowed(module: nn.Module, compute: str) -> nn.Module:
    """Return a copy of MODULE, without weights, as it computes in the dtype COMPUTE.

    Raises:
        UnsupportedError: MODULE cannot be copied.
    """
    blank = without_weights(module, DTYPES[compute])
    if blank is None:
        raise UnsupportedError(
            f"{type(module).__name__} cannot be copied, so it is captured only in its own dtype:"
            " call .to(dtype) on it first, and leave `compute` out"
        )
    return cast(blank, compute)


def inputs_in(compute: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return INPUTS, floating-point tensors and arrays in the dtype COMPUTE, if one is given.

    Raises:
        BadInputError: COMPUTE is no dtype to compute in.
    """
    if compute and compute not in COMPUTE:
        raise BadInputError(f"compute is {compute!r}; it is one of {', '.join(COMPUTE)}")
    dtype = DTYPES[compute] if compute else None
    return mapped(lambda _, value: _in(dtype, value) if dtype else value, inputs)


def _in(dtype: torch.dtype, value: Any) -> Any:
    tensor = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
    is_float = isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
    return tensor.to(dtype) if is_float else value


def on_masters(recording: Recording, module: nn.Module) -> Recording:
    """Return RECORDING, of MODULE in another dtype, with the names and dtypes of MODULE."""
    state = module.state_dict(keep_vars=True)
    first = canonical_names(state)
    return replace(
        recording,
        names={name: (first[name], dtype) for name, (_, dtype) in recording.names.items()},
        masters={name: tensor.dtype for name, tensor in state.items()},
    )


def narrow_frozen(wiring: Wiring, recordings: Iterable[Recording]) -> None:
    """Hold what is not trained in the dtypes that the graph takes it in.

    As they are stay what a step of RECORDINGS writes, and weights that are rounded with their updates.
    """
    rounded = {wiring.first(name) for name, slot in wiring.slots.items() if slot.rounding}
    written = {it.names[name][0] for it in recordings for name in it.writes.values()}
    for first, dtype in wiring.recording.names.values():
        location = wiring.location(first)
        frozen = location.path in location.branch._no_grad
        if frozen and first not in {*rounded, *written, *wiring.schemes}:
            location.set(array_in(location.get(), mlx_dtype(dtype)))
