"""Adapters live in MLX: mlx-lm's own layers, put in by us or by mlx-lm's own loader.

MLX and mlx-lm are imported inside: a machine that has torch alone may ask whether there is a loader.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...errors import MismatchError, UnsupportedError
from ..common.arrays import to_mlx
from ..common.dtypes import dtype_of
from ..libraries.modules import EMBEDDING, EXPERTS, LINEAR, mlx_kind
from ..values import Array, LowRank

if TYPE_CHECKING:
    import mlx.core as mx
    from mlx import nn


def layers() -> Mapping[tuple[str, bool], Any]:
    """Return mlx-lm's class of layer for a kind of module, with DoRA and without.

    Raises:
        UnsupportedError: mlx-lm is not installed.
    """
    try:
        from mlx_lm.tuner.dora import DoRALinear
        from mlx_lm.tuner.lora import LoRAEmbedding, LoRALinear, LoRASwitchLinear
    except ImportError as error:
        raise UnsupportedError(
            f"a live adapter in MLX needs mlx-lm ({error}); install weighbridge[lm], or merge it"
            " into its base first (weighbridge merge --help)"
        ) from error
    return {
        (LINEAR, False): LoRALinear,
        (LINEAR, True): DoRALinear,
        (EMBEDDING, False): LoRAEmbedding,
        (EXPERTS, False): LoRASwitchLinear,
    }


def attach_adapter(module: nn.Module, updates: Mapping[str, LowRank], dtype: str) -> None:
    """Put UPDATES to work in MODULE, a class of an MLX library, by layers of mlx-lm.

    Args:
        module: what runs; the modules that an update changes are replaced by layers around them.
        updates: by parameter of MODULE, in its layout.
        dtype: that MODULE computes in; factors in float64 are brought to it, others stay as they are.

    Raises:
        MismatchError: an update has no parameter, or another shape; all of them are listed.
        UnsupportedError: mlx-lm has no layer for one; they are named.
    """
    from mlx.utils import tree_unflatten

    check(module, updates)
    known, modules = layers(), dict(module.named_modules())
    paths = {name: name.removesuffix(".weight") for name in updates}
    refused = [
        f"{name} ({type(modules[path]).__name__}{', DoRA' if dora(updates[name]) else ''})"
        for name, path in sorted(paths.items())
        if (mlx_kind(modules[path]), dora(updates[name])) not in known
    ]
    if refused:
        raise UnsupportedError(
            f"mlx-lm has no live adapter for {', '.join(refused)}; merge it into its base"
            " first (weighbridge merge --help)"
        )
    made = [(path, layer(modules[path], updates[name], dtype)) for name, path in paths.items()]
    module.update_modules(tree_unflatten(made))


def check(module: nn.Module, updates: Mapping[str, LowRank]) -> None:
    """Check that each of UPDATES has a parameter of MODULE of its shape.

    Raises:
        MismatchError: all that have none are listed.
    """
    from mlx.utils import tree_flatten

    parameters: Any = tree_flatten(module.parameters())
    shapes = {name: tuple(array.shape) for name, array in parameters}
    problems = [
        f"{name}: {wanted}, found an update of {list(update.shape)}"
        for name, update in sorted(updates.items())
        if not name.endswith(".weight") or shapes.get(name) != update.shape
        for wanted in [f"expected {list(shapes[name])}" if name in shapes else "no such weight"]
    ]
    if problems:
        raise MismatchError(f"the adapter does not fit {type(module).__name__}", problems)


def dora(update: LowRank) -> bool:
    """Say whether UPDATE has magnitudes."""
    return update.magnitude is not None


def layer(module: Any, update: LowRank, dtype: str) -> Any:
    """Return MODULE inside a layer of mlx-lm that adds UPDATE."""
    kind = mlx_kind(module)
    made = layers()[kind, dora(update)].from_base(module, r=update.rank, scale=update.scale)
    made.lora_a, made.lora_b = (factor(array, dtype) for array in factors(kind, update))
    if update.magnitude is not None:
        made.m = factor(update.magnitude, dtype)
    return made


def factors(kind: str, update: LowRank) -> tuple[Array, Array]:
    """Return ``lora_a`` and ``lora_b`` of UPDATE, which lies as the weight of a module of KIND.

    mlx-lm 0.32, ``tuner/lora.py``: ``(in, r)`` and ``(r, out)``; of experts ``(E, r, in)`` and
    ``(E, out, r)``; of an embedding ``(V, r)`` and ``(r, D)``.
    """
    if kind == EXPERTS:
        return update.a, update.b
    return (update.b, update.a) if kind == EMBEDDING else (update.a.T, update.b.T)


def factor(array: Array, dtype: str) -> mx.array:
    """Return ARRAY in MLX, brought to DTYPE if it is in float64."""
    return to_mlx(array.astype(dtype_of(dtype)) if array.dtype.itemsize == 8 else array)
