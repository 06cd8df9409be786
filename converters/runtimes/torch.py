"""Run a model in PyTorch, whatever framework's names its weights carry."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from ...errors import BadInputError
from ..common.arrays import from_torch, to_torch
from ..common.policy import Policy
from ..models import Model
from ..models.factories import copied, run_module
from ..models.model import TorchSide
from ..values import Array, LowRank
from .base import Arrays, Trace, require_outputs
from .fitting import load_weights
from .pieces import KEPT, NothingKeptError, joined, kept_by, pieces
from .pretrained import empty_pretrained, giving, load_pretrained
from .streamed.together import READINGS, together
from .torch_adapters import Places, attach_adapter, whole_places

INPUT = "|in"  # marks what reaches a site, beside the site's own name
DTYPES = {
    name: getattr(torch, name)
    for name in ("float64", "float32", "float16", "bfloat16", "int64", "int32", "bool")
}


def torch_side(model: Model) -> TorchSide:
    """Return MODEL's tensors by PyTorch's names; where nobody knows these, they are MODEL's own.

    Raises:
        BadInputError: the tensors have MLX's names.
    """
    if model.torch_side is not None:
        return model.torch_side(model)
    if model.framework == "mlx":
        raise unnamed(model)
    updates = model.adapter.updates if model.adapter else {}

    def parameter_updates() -> dict[str, LowRank]:
        raise unnamed(model)

    return TorchSide(model.own_values(), updates, parameter_updates)


def unnamed(model: Model) -> BadInputError:
    """Return what is raised where nobody says what PyTorch calls MODEL's tensors."""
    return BadInputError(
        f"{model.spec}: nothing says what PyTorch calls its tensors; open it with weighbridge.open"
    )


def empty_module(model: Model) -> nn.Module:
    """Build MODEL's architecture, weights not yet loaded, in evaluation mode.

    Raises:
        BadInputError: there is no torch module for it.
    """
    if isinstance(model.factory, nn.Module):
        own: nn.Module = copied(model.factory)
        return own.eval()  # casting it must change nobody else's
    model.require_source()
    if model.family is None:
        model.signature  # noqa: B018  # raises, and says what to do
        words = "its factory did not return a torch module; float64 is computed there: the torch side comes first"
        raise BadInputError(f"{model.spec}: {words}")
    module: nn.Module = empty_pretrained(model).eval()
    return module


def drop_absent(module: nn.Module, arrays: Iterable[str], optional: Collection[str]) -> None:
    """Remove OPTIONAL parts that the checkpoint does not carry, so that nothing runs at random."""
    carried = {name.partition(".")[0] for name in arrays}
    for head in optional:
        if hasattr(module, head) and head not in carried:
            setattr(module, head, None)


def build_module(model: Model, dtype: str = "float32") -> nn.Module:
    """Return MODEL as a torch module in evaluation mode, weights loaded and adapter live.

    Args:
        model: any model with weights; one with MLX's names carries its way back to torch's.
        dtype: of parameters and floating-point buffers.
    """
    return build(model, dtype)[0]


def build(model: Model, dtype: str = "float32") -> tuple[nn.Module, Places]:
    """Return what :func:`build_module` does, and which of its weights each torch tensor is in."""
    module, updates, found = bare(model, dtype)
    attach_adapter(module, updates)
    return module, found


class Bare(NamedTuple):
    """A module without its adapter.

    Attributes:
        module: in evaluation mode, weights loaded.
        updates: the adapter, by parameter of the module.
        places: which weight of the module each torch tensor is in.
    """

    module: nn.Module
    updates: dict[str, LowRank]
    places: Places


def bare(model: Model, dtype: str = "float32", *, frozen: bool = True) -> Bare:
    """Return what :func:`build_module` does, the adapter aside: nothing in the module runs it.

    Without FROZEN its parameters can be trained, as the class made them.
    """
    module = empty_module(model)
    updates: dict[str, LowRank] = {}
    found: Places = {name: name for name in module.state_dict()}
    if model.path is not None:
        side = torch_side(model)
        found = fill(module, model, side)
        updates = updates_of(module, model, side, found)
    module = cast(module, dtype)
    if frozen:
        module.requires_grad_(requires_grad=False)
    return Bare(module, updates, found)


def cast(module: nn.Module, dtype: str) -> nn.Module:
    """Cast MODULE to DTYPE, in place; in 16 bits, what it computes itself stays as it is.

    So does ``from_pretrained(dtype=...)``: rotary frequencies in 16 bits would be another model.
    """
    owners = [*module.modules()] if DTYPES[dtype].itemsize == 2 else []
    computed = [
        (owner, name, owner._buffers[name])
        for owner in owners
        for name in owner._non_persistent_buffers_set
    ]
    module.to(DTYPES[dtype])
    for owner, name, buffer in computed:
        owner._buffers[name] = buffer
    return module


def updates_of(
    module: nn.Module, model: Model, side: TorchSide, found: Places
) -> dict[str, LowRank]:
    """Return the updates of MODEL's SIDE by parameter of MODULE; FOUND says where its tensors went."""
    names = whole_places(module, {name: side.arrays[name] for name in side.updates}, found)
    if names is None and model.factory is None:
        return side.parameter_updates()
    return {(names or {}).get(name, name): it for name, it in side.updates.items()}


def fill(module: nn.Module, model: Model, side: TorchSide) -> Places:
    """Load MODEL's SIDE into MODULE, strictly; return its weight for each, ``None`` where it has none.

    Raises:
        MismatchError: names are missing or unexpected, or shapes differ; all of them are listed.
    """
    arrays, known = side.arrays, side.recomputed
    drop_absent(module, arrays, model.family.optional if model.family else ())
    if model.factory is not None:
        load_weights(module, arrays, where=model.spec, known=known)
        own = module.state_dict()
        return {name: name if name in own else None for name in arrays}
    tensors = {name: to_torch(array) for name, array in arrays.items() if name not in known}
    towers = model.framework == "mlx" and not (model.family and model.family.map)
    return dict.fromkeys(known) | load_pretrained(module, tensors, model.spec, towers=towers)


def call(
    module: nn.Module, inputs: Mapping[str, torch.Tensor], outputs: tuple[str, ...]
) -> dict[str, torch.Tensor]:
    """Call MODULE by keyword and name its outputs.

    A mapping (ModelOutput) answers by name; a tensor or tuple answers in the signature's order.

    Raises:
        BadInputError: MODULE returns something else.
    """
    return named_outputs(module, run_module(giving(module, outputs), inputs), outputs)


def named_outputs(
    module: nn.Module, result: Any, outputs: tuple[str, ...]
) -> dict[str, torch.Tensor]:
    """Return the OUTPUTS in what MODULE returned, by name."""
    if isinstance(result, Mapping):
        named = {name: result[name] for name in outputs if name in result}
    else:
        values = result if isinstance(result, tuple | list) else (result,)
        named = dict(zip(outputs, values, strict=False))
    return require_outputs(type(module).__name__, named, outputs, torch.Tensor)


def first_tensor(value: Any) -> torch.Tensor | None:
    """Return the first tensor of VALUE, what a module took or returned; ``None`` where there is none."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, Mapping):
        value = tuple(value.values())
    return first_tensor(value[0]) if isinstance(value, tuple | list) and value else None


def replace_first(value: Any, new: torch.Tensor) -> Any:
    """Return VALUE with NEW in place of its first tensor."""
    if isinstance(value, torch.Tensor):
        return new
    if isinstance(value, Mapping):
        first = next(iter(value))
        value[first] = replace_first(value[first], new)  # type: ignore[index]
        return value
    return type(value)((replace_first(value[0], new), *value[1:]))


class Recorder:
    """Hooks that record every submodule's first input and output, and put corrections in their place.

    Args:
        corrections: by site; ``SITE|in`` corrects what reaches a site.
    """

    def __init__(self, corrections: Arrays | None) -> None:
        self.corrections = corrections or {}
        self.sites: dict[str, Array] = {}

    def record(self, site: str, value: Any) -> Any:
        """Record the first floating-point tensor in VALUE; return VALUE corrected, or ``None``."""
        tensor = first_tensor(value)
        if tensor is None or not tensor.is_floating_point():
            return None
        self.sites[site] = from_torch(tensor.clone())  # a later module may write over it
        if site not in self.corrections or self.corrections[site].shape != tuple(tensor.shape):
            return None
        return replace_first(value, to_torch(self.corrections[site]).to(tensor.dtype))

    def hooks(self, path: str, child: nn.Module) -> tuple[Any, Any]:
        """Watch the submodule CHILD at PATH; a second call of it is another site, ``PATH@1``."""
        calls = itertools.count()
        current = path

        def enter(_: nn.Module, args: Any, kwargs: Any) -> Any:
            nonlocal current
            number = next(calls)
            current = f"{path}@{number}" if number else path
            given = args or kwargs
            corrected = self.record(current + INPUT, given)
            if corrected is None:
                return None
            return (corrected, kwargs) if args else (args, corrected)

        def leave(_: nn.Module, __: Any, out: Any) -> Any:
            return self.record(current, out)

        return child.register_forward_pre_hook(
            enter, with_kwargs=True
        ), child.register_forward_hook(leave)


@contextlib.contextmanager
def recording(module: nn.Module, corrections: Arrays | None) -> Iterator[dict[str, Array]]:
    """Record the first input and output of every submodule; return corrections in their place."""
    recorder = Recorder(corrections)
    watched = [(path, child) for path, child in module.named_modules() if path]
    handles = [handle for path, child in watched for handle in recorder.hooks(path, child)]
    try:
        yield recorder.sites
    finally:
        for handle in handles:
            handle.remove()


class TorchRunner:
    """A model in PyTorch.

    Attributes:
        module: the torch module that runs.
        users: whether its class is a user's own, none of transformers'.
    """

    runtime = "torch"

    def __init__(self, model: Model, policy: Policy, module: nn.Module | None = None) -> None:
        self.signature = model.signature
        self.policy = policy
        self.users = model.factory is not None
        self.module = build_module(model, policy.parameter_dtype) if module is None else module

    def _feed(self, inputs: Arrays) -> dict[str, torch.Tensor]:
        compute = DTYPES[self.policy.compute]
        tensors = {port.name: to_torch(inputs[port.name]) for port in self.signature.inputs}
        return {
            name: tensor.to(compute) if tensor.is_floating_point() else tensor
            for name, tensor in tensors.items()
        }

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """Return the outputs by port name, in the compute dtype."""
        names = tuple(port.name for port in self.signature.outputs)
        with torch.no_grad():
            outputs = call(self.module, self._feed(inputs), names)
        return {name: from_torch(tensor) for name, tensor in outputs.items()}

    def run_all(self, rows: Sequence[Arrays]) -> list[dict[str, Array]]:
        """Return the outputs of each of ROWS; all share one reading of weights that are on disk."""
        return together(self.module, [partial(self.run, inputs) for inputs in rows])

    @property
    def cache(self) -> str:
        """What a user's module keeps a text in between calls; empty where it keeps none."""
        return kept_by(self.module)[0] if self.users else ""

    @property
    def cache_unread(self) -> str:
        """Why a cache that a user's module takes cannot be given to it; empty where it can."""
        return kept_by(self.module)[1] if self.users else ""

    def run_in_pieces(self, inputs: Arrays, sizes: Sequence[int]) -> dict[str, Array]:
        """Return the outputs of each token, read with a cache, so many at a time as SIZES says.

        Raises:
            NothingKeptError: the module returns no cache.
        """
        names, calls, kept = tuple(port.name for port in self.signature.outputs), [], None
        for piece in pieces(self.signature, inputs, sizes):
            feed = {**self._feed(piece), KEPT: kept, "use_cache": True}
            with torch.no_grad():
                result = run_module(giving(self.module, names), feed)
            kept = result.get(KEPT) if isinstance(result, Mapping) else None
            if kept is None:
                raise NothingKeptError(f"it takes {KEPT} and returns none")
            found = named_outputs(self.module, result, names)
            calls.append({name: from_torch(tensor) for name, tensor in found.items()})
        return joined(self.signature, calls)

    def trace(self, inputs: Arrays, corrections: Arrays | None = None) -> Trace:
        """Run and record every submodule that returns a floating-point tensor."""
        with recording(self.module, corrections) as sites:
            outputs = self.run(inputs)
        return Trace(outputs, sites)

    def describe(self) -> dict[str, str]:
        """Return version, dtype and BLAS."""
        blas = "mkl" if torch.backends.mkl.is_available() else "other"  # type: ignore[no-untyped-call]
        return {
            "runtime": self.runtime,
            "version": torch.__version__.split("+")[0],
            "device": self.policy.device,
            "dtype": self.policy.compute,
            "accumulate": self.policy.accumulate,
            "weights": "on disk" if READINGS in vars(self.module) else "in memory",
            "blas": blas,
            "threads": str(torch.get_num_threads()),
        }
