"""An adapter live in MLX by mlx-lm's own loader, and whether that took all of it.

MLX and mlx-lm are imported inside: a machine that has torch alone may ask whether there is a loader.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ....errors import MismatchError, UnsupportedError
from ...common.policy import Policy
from ...models import Model
from ..mlx_adapters import layers
from .classes import misfits

if TYPE_CHECKING:
    from mlx import nn

    from ..mlx import MlxRunner

LEAVES: Final = ("lora_a", "lora_b", "m")  # what mlx-lm's layers add to a module


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
    from ..mlx import MlxRunner, from_library

    module = from_library(bare, "float32", whole=True)
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
        reported = str(error).splitlines() or [type(error).__name__]
        summary = f"mlx-lm cannot load {folder} on {where}"
        raise MismatchError(summary, [line.strip() for line in reported]) from error
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
