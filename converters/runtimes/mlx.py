"""Run a model in MLX: the source's own computation, captured, or a native ``mlx.nn`` module."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any, TypeGuard

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.utils import tree_flatten

from ...errors import MismatchError, UnsupportedError
from ..common.arrays import from_mlx, to_mlx, to_torch
from ..common.dtypes import dtype_of
from ..common.policy import Policy
from ..libraries.repairs.catalogue import unloaded
from ..models import Model
from ..models.factories import copied, run_module
from ..models.signature import Signature
from ..values import Array, LowRank
from .base import Arrays, Trace, require_outputs
from .blas import blas_in_use
from .mlx_adapters import attach_adapter
from .native.caches import kinds, new_cache, reason_unread, taken, with_cache
from .native.classes import (
    call_native,
    differences,
    library_module,
    loaded,
    misfits,
    parameter_names,
    sixteen_bit_experts,
    unread,
)
from .native.sites import watching
from .pieces import joined, pieces
from .streamed.mlx import put_on_disk, readers_of, reads_weights

if TYPE_CHECKING:
    from ..captures.torch_to_mlx.captured import Captured

SIZES = (
    3,
    7,
    5,
    11,
)  # example sizes of named dimensions: distinct, so that none is taken for another


def example_inputs(
    signature: Signature, compute: str = "float32", sizes: Sequence[int] = SIZES
) -> dict[str, Array]:
    """Return small inputs that have the signature's names and roles, floats in COMPUTE."""
    names = dict.fromkeys(
        size for port in signature.inputs for size in port.shape if isinstance(size, str)
    )
    chosen = dict(zip(names, sizes, strict=False))
    generator = np.random.default_rng(0)
    examples: dict[str, Array] = {}
    for port in signature.inputs:
        shape = [size if isinstance(size, int) else chosen[size] for size in port.shape]
        kind = np.dtype(port.dtype)
        kind = kind if kind.kind in "iub" else dtype_of(compute)
        examples[port.name] = (
            np.ones(shape, kind)
            if kind.kind in "iub"
            else generator.normal(size=shape).astype(kind)
        )
    return examples


def captured_module(model: Model, dtype: str = "float32", *, frozen: bool = True) -> Captured:
    """Capture MODEL's torch computation with its weights, its adapter live; FROZEN or to be trained."""
    from ..captures.torch_to_mlx import capture_torch
    from ..captures.torch_to_mlx.passes.table import PASSES
    from ..captures.torch_to_mlx.remembered import capture_once
    from .torch import bare

    examples = example_inputs(model.signature, dtype)
    module, updates, _ = bare(model, dtype, frozen=frozen)
    recorded = capture_once if model.factory is None else capture_torch
    captured = recorded(
        module,
        inputs={name: to_torch(array) for name, array in examples.items()},
        dynamic=model.signature.dynamic,
        # fused, the rotation would not read what the rotary module returns, which checks replace
        passes=tuple(name for name in PASSES if name != "rope"),
    )
    if updates:
        captured.set_adapters(updates)
    return captured


def native_module(model: Model) -> nn.Module:
    """Load MODEL's weights into the ``mlx.nn`` module that its factory returned, strictly.

    Raises:
        MismatchError: names or shapes differ; all of them are listed.
    """
    module: nn.Module = model.factory
    if model.path is None:
        return module
    headers = model.checkpoint.headers
    if problems := list(differences(module, headers)):
        raise MismatchError(f"{model.spec} does not fit {type(module).__name__}", problems)
    weights = [(name, to_mlx(model.checkpoint.read(name))) for name in headers]
    module.load_weights(weights, strict=True)
    return module


def from_library(model: Model, dtype: str, *, whole: bool = False) -> nn.Module:
    """Return the MLX library's class with MODEL's weights in DTYPE, its adapter live.

    In a 16-bit DTYPE the parameters stay wider that the class itself keeps wider. Weights stay on
    disk where the class takes them as they lie; WHOLE, or below an adapter, they are in memory:
    mlx-lm's layers read them as arrays.

    Raises:
        UnsupportedError: no layer of mlx-lm runs the adapter live.
    """
    module = None if whole or model.adapter else library_on_disk(model, dtype)
    module = module or library_in_memory(model, dtype)
    if model.adapter:
        attach_adapter(module, library_updates(model), dtype)
    return module


def cast_by(module: nn.Module, dtype: str) -> Callable[[str, mx.Dtype], mx.Dtype]:
    """Return the dtype in which MODULE has a parameter, from its name and own dtype, if it runs in DTYPE."""
    narrows = getattr(module, "cast_predicate", None) if dtype != "float32" else None

    def cast(name: str, own: mx.Dtype) -> mx.Dtype:
        changes = mx.issubdtype(own, mx.floating) and (narrows is None or narrows(name))
        found: mx.Dtype = getattr(mx, dtype) if changes else own
        return found

    return cast


def library_in_memory(model: Model, dtype: str) -> nn.Module:
    """Return the MLX library's class with MODEL's weights in DTYPE."""
    module = library_module(model, model.own_values())
    cast = cast_by(module, dtype)
    parameters: Any = tree_flatten(module.parameters())
    changed = [(name, array.astype(cast(name, array.dtype))) for name, array in parameters]
    module.load_weights(changed, strict=False)
    return module


def library_on_disk(model: Model, dtype: str) -> nn.Module | None:
    """Return the same, each weight on disk until it is used; ``None`` where the class changes some."""
    checkpoint = model.own_values().checkpoint
    lazy = {name: unread(head) for name, head in checkpoint.headers.items()}
    module, parameters = loaded(model, lazy)
    if problems := list(differences(module, parameters)):
        raise MismatchError(f"{model.spec} does not fit {model.library}", problems)
    own = {id(array): name for name, array in lazy.items()}
    if any(id(array) not in own for array in parameters.values()):
        return None
    sources = {name: own[id(array)] for name, array in parameters.items()}
    put_on_disk(module, readers_of(parameters, sources, checkpoint, cast_by(module, dtype)))
    return module


def library_updates(model: Model) -> dict[str, LowRank]:
    """Return MODEL's adapter by parameters of the library's class.

    Raises:
        UnsupportedError: the class's loading makes another tensor of an updated one.
    """
    updates = dict(model.adapter.updates) if model.adapter else {}
    names = parameter_names(model) if updates else {}
    if changed := sorted(updates.keys() & model.checkpoint.headers.keys() - names.keys()):
        raise UnsupportedError(
            f"{model.library} changes {', '.join(changed)} as it loads, so an adapter cannot run live"
            " there; merge it into its base first (weighbridge merge --help)"
        )
    return {names.get(name, name): update for name, update in updates.items()}


def module_of(model: Model, dtype: str) -> tuple[nn.Module, str]:
    """Return the module that runs MODEL in DTYPE, and what it is: user, library or captured.

    An architecture with a table of its own is captured, whatever class a library has for it, unless
    torch is not installed here.

    Raises:
        MismatchError: the library's class does not take the directory, and nothing says how it lies.
        UnsupportedError: neither does it, nor can torch's computation be captured.
    """
    if isinstance(model.factory, nn.Module):
        return widened(native_module(model), dtype), "user"
    tabled = model.family and model.family.map and (has_torch() or misfits(model))
    if model.framework != "mlx" or model.factory or tabled or model.library is None:
        return captured_module(model, dtype), "captured"
    problems = misfits(model)
    if not problems:
        return from_library(model, dtype), "library"
    if not model.map_text:
        raise MismatchError(f"{model.spec} does not fit {model.library}", problems)
    found = f"{model.spec} does not fit {model.library} ({problems[0]}; {len(problems)} in all)"
    if unloaded(model.library.library, model.library.model_type):
        raise UnsupportedError(found)  # the class that is mended does, and torch's would tell less
    try:
        return captured_module(model, dtype), "captured"
    except UnsupportedError as error:
        raise UnsupportedError(
            f"{found}, and torch's computation cannot run in its place: {error}"
        ) from error


def widened(module: nn.Module, dtype: str) -> nn.Module:
    """Return MODULE; where it keeps weights in 16 bits and is to run in float32, a copy with wider ones."""
    kept: Any = tree_flatten(module.parameters())
    if dtype != "float32" or not any(it.dtype in (mx.float16, mx.bfloat16) for _, it in kept):
        return module
    wide: nn.Module = copied(module)
    wide.set_dtype(mx.float32)
    return wide


def has_torch() -> bool:
    """Say whether torch can be imported; without it nothing can be captured."""
    with contextlib.suppress(ImportError):
        return bool(importlib.import_module("torch"))
    return False


def is_captured(module: nn.Module) -> TypeGuard[Captured]:
    """Say whether MODULE was captured from torch; what captures is imported only once it was."""
    there = sys.modules.get(f"{__package__.rpartition('.')[0]}.captures.torch_to_mlx.captured")
    return there is not None and isinstance(module, there.Captured)


def name_outputs(result: Any, signature: Signature, who: str) -> dict[str, mx.array]:
    """Name what the module WHO returned: by key or attribute, else in the signature's order.

    Raises:
        BadInputError: there is no array for one of the signature's outputs.
    """
    names = tuple(port.name for port in signature.outputs)
    if isinstance(result, mx.array | tuple | list):
        values = result if isinstance(result, tuple | list) else (result,)
        named = dict(zip(names, values, strict=False))
    elif isinstance(result, dict):
        named = {name: result[name] for name in names if name in result}
    else:
        named = {name: getattr(result, name) for name in names if hasattr(result, name)}
    return require_outputs(who, named, names, mx.array)


def run_recorded(module: nn.Module, feed: Mapping[str, Any]) -> Any:
    """Return what a captured MODULE makes of FEED.

    Raises:
        UnsupportedError: a size that the source computes, such as the number of pieces of a text, was
            recorded as a constant and is another one here.
    """
    try:
        return run_module(module, feed)
    except ValueError as error:
        where = " ".join([str(error), *getattr(error, "__notes__", ())])
        raise UnsupportedError(
            f"torch's computation was recorded at one size and does not run at another: {where}"
        ) from error


class MlxRunner:
    """A model in MLX.

    Attributes:
        module: the captured or native module that runs.
        kind: whose it is: ``captured`` from torch, an MLX ``library``'s, or the ``user``'s own.
        library: which library's class it is; empty for another.
    """

    runtime = "mlx"

    def __init__(self, model: Model, policy: Policy, module: nn.Module | None = None) -> None:
        self.signature = model.signature
        self.policy = policy
        self.module, self.kind = (
            (module, "captured" if is_captured(module) else "user")
            if module
            else module_of(model, policy.parameter_dtype)
        )
        self.name = type(self.module).__name__
        self.library = str(model.library) if self.kind == "library" else ""
        self.module.eval()

    def _feed(self, inputs: Arrays) -> dict[str, mx.array]:
        compute = getattr(mx, self.policy.compute)
        arrays = {port.name: to_mlx(inputs[port.name]) for port in self.signature.inputs}
        return {
            name: array.astype(compute) if mx.issubdtype(array.dtype, mx.floating) else array
            for name, array in arrays.items()
        }

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """Return the outputs by port name, in the compute dtype."""
        return self._named(self._call(self._feed(inputs)))

    def named_arrays(self, feed: Mapping[str, mx.array]) -> dict[str, mx.array]:
        """Return the outputs for arrays of MLX, by port name."""
        return name_outputs(self._call(feed), self.signature, self.name)

    def _call(self, feed: Mapping[str, Any]) -> Any:
        if self.kind == "captured":
            return run_recorded(self.module, feed)
        if self.kind != "library":
            return run_module(self.module, feed)
        with sixteen_bit_experts():
            return call_native(self.module, feed)

    def _named(self, result: Any) -> dict[str, Array]:
        outputs = name_outputs(result, self.signature, self.name)
        return {name: from_mlx(array) for name, array in outputs.items()}

    @property
    def cache(self) -> str:
        """The classes in which the module keeps a text between calls; empty where it keeps none."""
        none = is_captured(self.module) or not taken(self.module) or self.cache_unread
        return "" if none else kinds(new_cache(self.module))

    @property
    def cache_unread(self) -> str:
        """Why a cache that the module's call takes cannot be given to it; empty where it can."""
        return "" if is_captured(self.module) else reason_unread(self.module)

    def run_in_pieces(self, inputs: Arrays, sizes: Sequence[int]) -> dict[str, Array]:
        """Return the outputs of each token, read with a cache, so many at a time as SIZES says."""
        read = with_cache(self.module, self._call)
        feeds = map(self._feed, pieces(self.signature, inputs, sizes))
        return joined(self.signature, [self._named(read(it)) for it in feeds])

    def trace(self, inputs: Arrays, corrections: Arrays | None = None) -> Trace:
        """Run and record every site: of a native module, by the paths of its own submodules."""
        if not is_captured(self.module):
            with watching(self.module, corrections or {}) as seen:
                outputs = self.run(inputs)
            return Trace(outputs, seen)
        fixed = {name: to_mlx(array) for name, array in (corrections or {}).items()}
        outputs, sites = self.module.trace(self._feed(inputs), fixed or None)
        return Trace(
            {
                name: from_mlx(array)
                for name, array in name_outputs(outputs, self.signature, self.name).items()
            },
            {name: from_mlx(array) for name, array in sites.items()},
        )

    def describe(self) -> dict[str, str]:
        """Return version, device, dtype and BLAS."""
        return {
            "runtime": self.runtime,
            "version": metadata.version("mlx"),
            "device": self.policy.device,
            "dtype": self.policy.compute,
            "accumulate": self.policy.accumulate,
            "blas": blas_in_use(),
            "captured": str(is_captured(self.module)),
            "weights": "on disk" if reads_weights(self.module) else "in memory",
            **({"library": self.library} if self.library else {}),
        }
