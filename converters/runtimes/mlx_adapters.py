"""Adapters live in MLX: mlx-lm's own layers, put in by us or by mlx-lm's own loader.

MLX and mlx-lm are imported inside: a machine that has torch alone may ask whether there is a loader.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...errors import MismatchError, UnsupportedError
from ..common.dtypes import dtype_of
from ..common.policy import Policy
from ..libraries.modules import EMBEDDING, EXPERTS, LINEAR, mlx_kind
from ..models import Model
from ..values import Array, LowRank
from .native import misfits

if TYPE_CHECKING:
    import mlx.core as mx
    from mlx import nn

    from .mlx import MlxRunner

LEAVES: Final = ("lora_a", "lora_b", "m")  # what mlx-lm's layers add to a module


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
        updates: by parameter of MODULE, laid out as it.
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
    from .mlx import to_mlx

    return to_mlx(array.astype(dtype_of(dtype)) if array.dtype.itemsize == 8 else array)


def mlx_lm_runner(model: Model, folder: Path) -> MlxRunner:
    """Return MODEL in float32 with the adapter of FOLDER live, loaded by mlx-lm itself.

    mlx-lm puts its layers in by the configuration and fills them without asking whether all are
    there (``strict=False``); every tensor is compared with the file.

    Args:
        model: a directory in MLX's layout, dense, that a class of an MLX library reads; an adapter
            on it is left aside.
        folder: ``adapter_config.json`` and ``adapters.safetensors``.

    Raises:
        MismatchError: mlx-lm refuses the adapter, or does not load it whole; everything is listed.
        UnsupportedError: no class of an MLX library runs MODEL, or mlx-lm is not installed.
    """
    layers()
    bare = replace(model, adapter=None)
    if problems := misfits(bare):
        raise UnsupportedError(f"no class of an MLX library runs {model.spec}: {problems[0]}")
    from .mlx import MlxRunner, from_library

    module = from_library(bare, "float32")
    load(module, folder, model.spec)
    runner = MlxRunner(bare, Policy(), module)
    runner.kind, runner.library = "library", str(model.library)
    return runner


def load(module: nn.Module, folder: Path, where: str) -> None:
    """Let mlx-lm load the adapter of FOLDER onto MODULE, of the model WHERE, and compare.

    Raises:
        MismatchError: it refuses, or does not load all and nothing else.
    """
    from mlx_lm.tuner.utils import load_adapters

    try:
        with with_layers(module):
            load_adapters(module, str(folder))
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        said = str(error).splitlines() or [type(error).__name__]
        summary = f"mlx-lm cannot load {folder} on {where}"
        raise MismatchError(summary, [line.strip() for line in said]) from error
    if problems := list(differences(module, folder / "adapters.safetensors")):
        raise MismatchError(f"mlx-lm does not load {folder} on {where} whole", problems)


@contextlib.contextmanager
def with_layers(module: Any) -> Iterator[None]:
    """Give MODULE ``.layers``, none, where its class has no such thing and mlx-lm asks for it.

    Modules are found by their full path then, as those outside of layers are anyway.
    """
    if hasattr(module, "layers"):
        yield
        return
    module.layers = []
    try:
        yield
    finally:
        del module.layers


def differences(module: nn.Module, file: Path) -> Iterator[str]:
    """Yield how the adapter in MODULE differs from FILE."""
    import mlx.core as mx
    from mlx.utils import tree_flatten

    saved: Any = mx.load(str(file))
    parameters: Any = dict(tree_flatten(module.parameters()))
    wrapped = [f"{path}." for path, it in module.named_modules() if hasattr(it, "lora_a")]
    own = {path + leaf for path in wrapped for leaf in LEAVES if path + leaf in parameters}
    yield from (f"{name} is in no file: left at random" for name in sorted(own - saved.keys()))
    for name in sorted(saved):
        if name not in parameters:
            yield f"{name} is loaded into nothing"
        elif not mx.array_equal(parameters[name], saved[name], equal_nan=True):
            yield f"{name} has other values than the file"
